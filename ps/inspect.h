// Every row of a shard's store, decoded, one after the other, whether it is whole or damaged: what --check and --dump stand on.
//
// Rows are read by the readers of journal, snapshot and recover; nothing is parsed a second way here. Only reads.
#ifndef EBB_PS_INSPECT_H
#define EBB_PS_INSPECT_H

#include "core/kvstore.h"
#include "ps/journal.h"
#include "ps/snapshot.h"

typedef enum ebb_inspect_kind {
    EBB_INSPECT_INSTALL = 'I',
    EBB_INSPECT_MANIFEST = 'M',
    EBB_INSPECT_STATE = 'G',
    EBB_INSPECT_RETIRED = 'R',
    EBB_INSPECT_WATERMARK = 'W',
    EBB_INSPECT_CHUNK = 'C',
    EBB_INSPECT_RECORD = 'J', // the head of a journal record
    EBB_INSPECT_PART = 'P',   // one gradient of it (its key begins with J too)
    EBB_INSPECT_UNKNOWN = '?',
} ebb_inspect_kind;

#define EBB_INSPECT_ALL "IMGRWCJ?"

typedef struct ebb_inspect_row {
    ebb_inspect_kind kind;
    char name[96];   // for people: "journal record 7 part 2"
    const char *bad; // what is wrong with it, or NULL; the union is valid only if NULL (lsn, part, generation: always)
    size_t bytes;    // of the value
    uint64_t lsn;    // RECORD, PART: of the key
    uint32_t part;
    uint32_t generation; // CHUNK: of the key; STATE
    union {
        const Ebb__ShardInstall *install;
        const ebb_manifest *manifest;
        struct {
            uint64_t lsn, version, skipped;
        } state;
        const ebb_streams *retired;
        struct {
            uint64_t stream, applied, lsn;
        } watermark;
        ebb_chunk_row chunk;
        ebb_record record;
        ebb_replay_part gradient;
    };
} ebb_inspect_row;

// The row and what it points to are valid until fn returns. Anything but OK ends the visit.
typedef ebb_status ebb_inspect_fn(void *arg, const ebb_inspect_row *row);

// Visits the rows whose keys begin with the letters, in the letters' order, and by key for each; '?' are all rows whose key is none of the known ones. CORRUPT or IO
// with a sentence in why (>= 256 bytes): the store could not give them all. Or what fn returned.
ebb_status ebb_inspect(ebb_kvstore *kv, const char *letters, ebb_inspect_fn *fn, void *arg, char *why);

#endif
