/* SPDX-License-Identifier: Apache-2.0 */
/* Around the targets: the time that an input takes, and a folder (in memory where the system has
   /dev/shm). */
#include <dirent.h>
#include <limits.h>
#include <time.h>
#include <unistd.h>

#include "fuzz.h"

/* The clock of the process does not run while others have the processor. */
static double cpu_s(void)
{
    struct timespec t;
    CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const double begin = cpu_s();
    const int result = fuzz_one(data, size);
    CHECK(cpu_s() - begin < 1);
    return result;
}

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

void fuzz_put_two(const char *first, const char *second, const uint8_t *data, size_t size)
{
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    const size_t length = nul ? (size_t)(nul - data) : size;
    fuzz_put(first, data, length);
    if (nul) {
        fuzz_put(second, nul + 1, size - length - 1);
    } else {
        char path[256];
        snprintf(path, sizeof path, "%s/%s", fuzz_folder(), second);
        unlink(path);
    }
}
