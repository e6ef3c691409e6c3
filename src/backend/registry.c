/* SPDX-License-Identifier: Apache-2.0 */
/* All backends: built-in kernels with the rows of their descriptors, registered ones, profiles. */
#include <pthread.h>
#include <string.h>

#include "backend/backend.h"
#include "core/status.h"

enum { MOST_BUILTIN = 32 };

static plait_backend builtin[MOST_BUILTIN];
static int32_t n_builtin;
static const plait_backend *registered[PLAIT_BACKEND_MAX];
static int32_t n_registered;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void fill(void)
{
    for (int32_t i = 0; i < plait_kernel_count() && i < MOST_BUILTIN; i++) {
        const plait_kernel *kernel = plait_kernel_get(i);
        builtin[n_builtin++] = (plait_backend){.size = sizeof(plait_backend),
                                               .name = kernel->name,
                                               .from = PLAIT_FROM_BUILTIN,
                                               .rows = kernel->rows,
                                               .n_rows = kernel->n_rows,
                                               .cost = 1,
                                               .cost_source = "the kernel's own cost",
                                               .kernel = kernel};
    }
}

int32_t plait_backend_count(void)
{
    pthread_once(&once, fill);
    pthread_mutex_lock(&lock);
    int32_t n = n_builtin + n_registered + plait_profile_count();
    pthread_mutex_unlock(&lock);
    return n;
}

const plait_backend *plait_backend_get(int32_t i)
{
    const plait_backend *found = NULL;
    pthread_once(&once, fill);
    pthread_mutex_lock(&lock);
    if (i >= 0 && i < n_builtin)
        found = &builtin[i];
    else if (i >= n_builtin && i < n_builtin + n_registered)
        found = registered[i - n_builtin];
    else if (i >= 0)
        found = plait_profile_get(i - n_builtin - n_registered);
    pthread_mutex_unlock(&lock);
    return found;
}

const plait_backend *plait_backend_find(const char *name)
{
    const plait_backend *backend;
    for (int32_t i = 0; name && (backend = plait_backend_get(i)) != NULL; i++)
        if (strcmp(backend->name, name) == 0)
            return backend;
    return NULL;
}

plait_status plait_backend_register(const plait_backend *backend)
{
    if (!backend || backend->size != sizeof *backend)
        return plait_fail(PLAIT_E_ARG, "backend: size is %zu, %zu was wanted",
                          backend ? backend->size : 0, sizeof *backend);
    if (!backend->name || !*backend->name || !backend->rows || backend->n_rows < 1)
        return plait_fail(PLAIT_E_ARG, "backend: it needs a name and at least one row");
    if (!(backend->cost >= 1))
        return plait_fail(PLAIT_E_ARG, "backend %s: cost is %g, at least 1 was wanted",
                          backend->name, backend->cost);
    if (backend->from != PLAIT_FROM_PLUGINS)
        return plait_fail(PLAIT_E_ARG, "backend %s: from is %u, PLAIT_FROM_PLUGINS was wanted",
                          backend->name, (unsigned)backend->from);
    for (int32_t i = 0; backend->kernel && i < backend->n_rows; i++)
        if (backend->rows[i].interleave_max)
            return plait_fail(PLAIT_E_ARG,
                              "backend %s: row %d has interleave_max %d; a kernel gets ranges, "
                              "which hold any: 0 was wanted",
                              backend->name, i, backend->rows[i].interleave_max);
    if (plait_backend_find(backend->name))
        return plait_fail(PLAIT_E_ARG, "backend %s: the name is taken", backend->name);
    plait_status status = PLAIT_OK;
    pthread_mutex_lock(&lock);
    if (n_registered == PLAIT_BACKEND_MAX)
        status = plait_fail(PLAIT_E_NOMEM, "backend %s: %d are registered, no more fit",
                            backend->name, PLAIT_BACKEND_MAX);
    else
        registered[n_registered++] = backend;
    pthread_mutex_unlock(&lock);
    return status;
}

void plait_backend_unregister(const plait_backend *backend)
{
    pthread_mutex_lock(&lock);
    int32_t kept = 0;
    for (int32_t i = 0; i < n_registered; i++)
        if (registered[i] != backend)
            registered[kept++] = registered[i];
    n_registered = kept;
    pthread_mutex_unlock(&lock);
}

const plait_row_note *plait_backend_note(const plait_backend *backend, int32_t row)
{
    static const plait_row_note none = {.mode = NULL};
    return backend->note ? &backend->note[row] : &none;
}
