/* SPDX-License-Identifier: Apache-2.0 */
/* Backends from shared objects: see plait/plugin.h. */
#include <dlfcn.h>
#include <string.h>

#include <plait/plugin.h>

#include "core/status.h"

static plait_status check_sizes(const char *path, const plait_plugin *p)
{
    if (!p || p->size != sizeof *p || p->abi != PLAIT_PLUGIN_ABI)
        return plait_fail(
            PLAIT_E_FORMAT, "%s: descriptor of %zu bytes, ABI %u; %zu bytes, ABI %d were wanted",
            path, p ? p->size : 0, p ? (unsigned)p->abi : 0, sizeof *p, PLAIT_PLUGIN_ABI);
    const struct {
        const char *name;
        size_t found, wanted;
    } sizes[] = {{"plait_caps", p->caps_size, sizeof(plait_caps)},
                 {"plait_row_note", p->note_size, sizeof(plait_row_note)},
                 {"plait_kernel", p->kernel_size, sizeof(plait_kernel)},
                 {"plait_attn_args", p->args_size, sizeof(plait_attn_args)}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].found != sizes[i].wanted)
            return plait_fail(PLAIT_E_FORMAT,
                              "%s: %s has %zu bytes there, %zu here: compile it against this "
                              "version",
                              path, sizes[i].name, sizes[i].found, sizes[i].wanted);
    if (p->n_backends < 1 || !p->backends)
        return plait_fail(PLAIT_E_FORMAT, "%s: it has no backend", path);
    for (int32_t i = 0; i < p->n_backends; i++) {
        const plait_kernel *k = p->backends[i].kernel;
        if (!k || !k->name || !k->rows || k->n_rows < 1 || !k->run || !k->reduce || !k->workspace ||
            !k->cost)
            return plait_fail(PLAIT_E_FORMAT, "%s: backend %d lacks a kernel or a part of it", path,
                              i);
    }
    return PLAIT_OK;
}

plait_status plait_plugin_load(const char *path, const plait_plugin **out)
{
    *out = NULL;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return plait_fail(PLAIT_E_IO, "plug-in: %s", dlerror());
    plait_plugin_fn entry = NULL;
    void *symbol = dlsym(library, PLAIT_PLUGIN_ENTRY);
    memcpy(&entry, &symbol, sizeof entry);
    plait_status status =
        entry ? PLAIT_OK
              : plait_fail(PLAIT_E_FORMAT, "%s: it exports no %s", path, PLAIT_PLUGIN_ENTRY);
    const plait_plugin *p = entry ? entry() : NULL;
    if (entry)
        status = check_sizes(path, p);
    int32_t done = 0;
    while (status == PLAIT_OK && done < p->n_backends) {
        status = plait_backend_register(&p->backends[done]);
        done += status == PLAIT_OK;
    }
    if (status != PLAIT_OK) {
        while (done > 0)
            plait_backend_unregister(&p->backends[--done]);
        dlclose(library);
        return status;
    }
    *out = p;
    return PLAIT_OK;
}
