/* SPDX-License-Identifier: Apache-2.0 */
/* The folder of a fuzz target: in memory where the system has /dev/shm. */
#include <dirent.h>
#include <limits.h>
#include <unistd.h>

#include "fuzz.h"

static char folder[64];

static void remove_folder(void)
{
    char path[sizeof folder + NAME_MAX + 2];
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        unlink(path);
    }
    if (dir)
        closedir(dir);
    rmdir(folder);
}

const char *fuzz_folder(void)
{
    if (!*folder) {
        const int memory = access("/dev/shm", W_OK) == 0;
        strcpy(folder, memory ? "/dev/shm/plait-fuzz-XXXXXX" : "/tmp/plait-fuzz-XXXXXX");
        CHECK(mkdtemp(folder));
        atexit(remove_folder);
    }
    return folder;
}

void fuzz_put(const char *file, const void *data, size_t size)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", fuzz_folder(), file);
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(data, 1, size, f) == size && fclose(f) == 0);
}
