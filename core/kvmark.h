// What of a store is surely on disk, in a file of its own: so that a store which lost its end is told from one that a crash cut short.
//
// RocksDB accepts a log or a MANIFEST that ends early, since a crash leaves that behind, and comes up without what was in the rest: acknowledged writes gone, in
// silence. So after each sync the file SYNCED is told how far the files had come. Invariant: what SYNCED names is on disk; a store that lacks any of it is damaged.
//
//   SYNCED: two slots of 512 bytes, written in turn (a torn write leaves the other), each
//     0 magic "EBS1" u32 | 4 n u32 | 8 count u64 (the higher one is valid) | 16 number of MANIFEST u64 | 24 its bytes u64
//     32 n x (number of a log u64, its bytes u64), only logs that are still needed | 508 crc32c u32 of 0..507
//
// Never synced itself: it may lag behind after a power loss, and is then a weaker promise, not a wrong one. A store without it (older version, or a copy) is taken
// as it is; the next opening for writing begins one.
#ifndef EBB_CORE_KVMARK_H
#define EBB_CORE_KVMARK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

#define EBB_KVMARK_FILE "SYNCED"
#define EBB_KVMARK_LOGS_MAX 29 // the newest; more than three are rare

typedef struct ebb_kvmarker ebb_kvmarker;

// ---- writing (one thread at a time) ----

// Opens SYNCED, or makes one. IO.
ebb_status ebb_kvmarker_open(const char *dir, ebb_kvmarker **out);
void ebb_kvmarker_close(ebb_kvmarker **m);
// Before a sync begins: how long are the files? look_manifest first, at any time (it syncs a MANIFEST that has grown); look_logs while nobody writes. IO.
ebb_status ebb_kvmarker_look_manifest(ebb_kvmarker *m);
ebb_status ebb_kvmarker_look_logs(ebb_kvmarker *m);
// After the sync succeeded: what was seen is on disk. needed_from, asked for after the sync: older logs are left out (their rows are in tables, and nobody
// synced them). IO.
ebb_status ebb_kvmarker_keep(ebb_kvmarker *m, uint64_t needed_from);

// ---- verifying (nobody may write to the store) ----

// Is told each thing that is wrong: the file's name within the folder, and what. harmless: nothing is lost by it.
typedef void ebb_kvproblem_fn(void *arg, bool harmless, const char *file, const char *what);
typedef struct ebb_kvmark_facts {
    uint64_t log_bytes, manifest_bytes;
    uint64_t torn_bytes; // at the ends of files, not whole records, and never synced: a write that a crash cut short
    bool has_mark;       // there is a file SYNCED
    uint64_t missing;    // the newest log that is gone since it was synced (0: none): damage, if MANIFEST still needs it, which only RocksDB can say
} ebb_kvmark_facts;
// OK even if something is wrong and was told. facts may be NULL. NOENT: no store in the folder (nothing, or the beginnings of one). IO: a file cannot be
// read; told too.
ebb_status ebb_kvmark_verify(const char *dir, ebb_kvproblem_fn *fn, void *arg, ebb_kvmark_facts *facts);

#endif
