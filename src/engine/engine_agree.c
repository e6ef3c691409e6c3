/* SPDX-License-Identifier: Apache-2.0 */
/* engine_agree.c: what the ranks of a caller's group compare, since each was given its own options,
   files and requests. */
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm.h"
#include "core/cpus.h"
#include "core/status.h"
#include "engine/engine_ranks.h"

uint64_t plait_engine_hash(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ at[i]) * 0x100000001b3u + 0x9e3779b97f4a7c15u;
    return hash;
}

/* ---- options --------------------------------------------------------------------------------- */

struct term {
    const char *name;
    int64_t value;
};

enum { MAX_TERMS = 24, LOAD_SECONDS = 600 };

/* What decides tokens, messages or memory. Numbers are shown, texts only compared. */
static int32_t list_terms(const plait_engine_options *o, struct term *terms)
{
    const uint64_t kernel = o->kernel ? plait_engine_hash(0, o->kernel, strlen(o->kernel)) : 0;
    const struct term all[] = {
        {"dcp", o->dcp},
        {"interleave", o->interleave},
        {"dtype", (int64_t)o->dtype},
        {"kv_dtype", o->kv_dtype},
        {"page_size", o->page_size},
        {"kv_cache_bytes", o->kv_cache_bytes},
        {"threads", o->threads},
        {"prefix_cache", o->prefix_cache},
        {"draft", (int64_t)o->draft},
        {"spec_tokens", o->spec_tokens},
        {"debug_ranks", o->debug_ranks},
        {"draft_kv_replicated", o->draft_kv_replicated},
        {"exchange", o->exchange},
        {"invariant", o->invariant},
        {"cpu_mask", (int64_t)o->cpu_mask},
        {"kernel (a hash)", (int64_t)(kernel >> 1)},
    };
    _Static_assert(sizeof all / sizeof *all <= MAX_TERMS, "room for all options");
    memcpy(terms, all, sizeof all);
    return (int32_t)(sizeof all / sizeof *all);
}

plait_status plait_engine_agree_options(const plait_engine_options *o, plait_status status)
{
    if (!o->comm)
        return status;
    struct term terms[MAX_TERMS];
    int64_t mine[MAX_TERMS] = {0}, all[PLAIT_COMM_MAX_RANKS][MAX_TERMS];
    const int32_t n = list_terms(o, terms);
    for (int32_t k = 0; k < n; k++)
        mine[k] = terms[k].value;
    PLAIT_TRY(plait_comm_exchange(o->comm, "compare options", status, mine, sizeof mine, all));
    for (int32_t i = 1; i < plait_comm_size(o->comm); i++)
        for (int32_t k = 0; k < n; k++)
            if (all[i][k] != all[0][k])
                return plait_fail(PLAIT_E_ARG,
                                  "rank %d was given %s %lld, but rank 0 %lld: all ranks need the "
                                  "same options",
                                  (int)i, terms[k].name, (long long)all[i][k],
                                  (long long)all[0][k]);
    return PLAIT_OK;
}

/* ---- model and CPUs -------------------------------------------------------------------------- */

struct place {
    uint64_t model;
    char machine[40]; /* the running kernel's id: ranks that share it share CPUs */
    cpu_set_t cpus;   /* that this rank may run on */
};

static uint64_t hash_model(const plait_engine *e)
{
    const plait_config *c = &e->config;
    const int32_t numbers[] = {c->vocab_size, c->hidden_size, c->max_position,  c->num_layers,
                               c->num_heads,  c->num_experts, c->num_mtp_layers};
    uint64_t hash = plait_engine_hash(0, numbers, sizeof numbers);
    /* Embeddings of two models differ nearly everywhere: a sample tells. */
    const size_t size = (size_t)c->vocab_size * (size_t)c->hidden_size;
    for (size_t i = 0; i < size; i += 1 + size / 4096)
        hash = plait_engine_hash(hash, &e->embedding[i], sizeof e->embedding[i]);
    const plait_eagle3_config *head = &e->eagle3.config;
    hash = plait_engine_hash(hash, head->aux, sizeof head->aux);
    return plait_engine_hash(hash, e->eagle3.target_ids,
                             (size_t)head->draft_vocab_size * sizeof *e->eagle3.target_ids);
}

static void find_place(struct place *p)
{
    memset(p, 0, sizeof *p);
    const int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        if (read(file, p->machine, sizeof p->machine - 1) < 0)
            p->machine[0] = 0;
        close(file);
    }
    sched_getaffinity(0, sizeof p->cpus, &p->cpus);
}

/* Threads of this rank: each of its CPUs counts by how many ranks may run on it, and the quota of
   the process is taken as shared by all ranks of the machine. Sets what is pinned. */
static int32_t share_cpus(plait_engine *e, const struct place *all, int32_t rank)
{
    const struct place *me = &all[rank];
    int32_t local = 0;
    double share = 0;
    e->pin_rank = e->pin_ranks = 0;
    for (int32_t i = 0; i < e->num_ranks; i++) {
        cpu_set_t both;
        if (memcmp(all[i].machine, me->machine, sizeof me->machine) != 0)
            continue;
        local++;
        CPU_AND(&both, &all[i].cpus, &me->cpus);
        if (CPU_COUNT(&both) == 0 && i != rank)
            continue;
        e->pin_rank += i < rank;
        e->pin_ranks++;
    }
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        int32_t users = 0;
        for (int32_t i = 0; i < e->num_ranks && CPU_ISSET(cpu, &me->cpus); i++)
            users += memcmp(all[i].machine, me->machine, sizeof me->machine) == 0 &&
                     CPU_ISSET(cpu, &all[i].cpus);
        share += users ? 1.0 / users : 0;
    }
    const int quota = plait_cpus_quota("");
    const int32_t threads = (int32_t)(share + 1e-6), most = quota > 0 ? quota / local : threads;
    const int32_t least = threads < most ? threads : most;
    return least > 1 ? least : 1;
}

plait_status plait_engine_agree_model(plait_engine *e, plait_status status)
{
    plait_comm *comm = e->options.comm;
    if (!comm)
        return status;
    struct place mine, all[PLAIT_COMM_MAX_RANKS];
    find_place(&mine);
    if (status == PLAIT_OK)
        mine.model = hash_model(e);
    PLAIT_TRY(plait_comm_exchange(comm, "open files", status, &mine, sizeof mine, all));
    for (int32_t i = 1; i < e->num_ranks; i++)
        if (all[i].model != all[0].model)
            return plait_fail(PLAIT_E_ARG, "rank %d opened another model than rank 0", (int)i);
    const int32_t threads = share_cpus(e, all, plait_comm_rank(comm));
    if (!e->options.threads)
        e->threads_per_rank = threads;
    return PLAIT_OK;
}

/* ---- requests and calls
 * -------------------------------------------------------------------------------- */

plait_status plait_engine_agree_requests(const plait_engine *e, uint64_t hash, plait_status status)
{
    if (!e->options.comm)
        return status;
    uint64_t all[PLAIT_COMM_MAX_RANKS];
    PLAIT_TRY(
        plait_comm_exchange(e->options.comm, "compare requests", status, &hash, sizeof hash, all));
    for (int32_t i = 1; i < e->num_ranks; i++)
        if (all[i] != all[0])
            return plait_fail(PLAIT_E_ARG, "rank %d was given other requests than rank 0", (int)i);
    return PLAIT_OK;
}

plait_status plait_rank_agree(plait_rank *r, const char *what, plait_status status)
{
    if (r->engine->num_ranks == 1)
        return status;
    status = plait_comm_agree_late(r->ranks, what, status, LOAD_SECONDS);
    r->agreed = status != PLAIT_OK;
    return status;
}
