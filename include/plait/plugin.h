/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plait/plugin.h - backends from a shared object.
 *
 * A plug-in exports one function, plait_plugin_entry, which returns a static descriptor. It needs
 * the headers of Plait only and no symbol of the library. Its kernels are those of plait/attn.h,
 * or keep a part of that contract, which their capability rows and notes say (plait/strategy.h).
 * `plait check --plugin FILE` proves that they do. examples/plugin_backend.c is one.
 */
#ifndef PLAIT_PLUGIN_H
#define PLAIT_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#include <plait/backend.h>
#include <plait/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Raised when the meaning of a field changes; sizes tell when fields are added. */
#define PLAIT_PLUGIN_ABI 1

typedef struct plait_plugin {
    size_t size;  /* sizeof(plait_plugin) */
    uint32_t abi; /* PLAIT_PLUGIN_ABI */
    int32_t n_backends;
    const char *name, *version;
    const plait_backend *backends; /* [n_backends], from PLAIT_FROM_PLUGINS, with kernels */
    size_t caps_size, note_size, kernel_size, args_size; /* of the structs compiled against */
} plait_plugin;

#define PLAIT_PLUGIN_INIT(name, version, backends, n)                                              \
    {                                                                                              \
        sizeof(plait_plugin), PLAIT_PLUGIN_ABI, n, name, version, backends, sizeof(plait_caps),    \
            sizeof(plait_row_note), sizeof(plait_kernel), sizeof(plait_attn_args)                  \
    }

#define PLAIT_PLUGIN_ENTRY "plait_plugin_entry"
typedef const plait_plugin *(*plait_plugin_fn)(void);

/*
 * Loads a plug-in and registers all of its backends, or none. It stays loaded until the process
 * ends. *out: its descriptor. PLAIT_E_IO: the file cannot be loaded; PLAIT_E_FORMAT: it has no
 * entry or another ABI, with both values; else the error of plait_backend_register. Thread-safe.
 */
PLAIT_API plait_status plait_plugin_load(const char *path, const plait_plugin **out);

#ifdef __cplusplus
}
#endif
#endif
