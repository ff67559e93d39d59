// What a shard's folder holds, and how a shard comes back from it.
//
//   file SHARD   one line: "ebbtide shard folder format 1 shard N crc XXXXXXXX" (a plain file, so that it can be read before the store is opened and thereby
//                changed; the CRC32C of what comes before " crc" came later than the format, so it may be missing)
//   key 'I'      packed ebb.ShardInstall, crc32c u32
//   key 'M'      packed ebb.Manifest, crc32c u32
//   key 'R'      retired set: below u64, count u64, then count x u64, crc32c u32
// and the rows of journal.h and snapshot.h. A folder of another shard, or written by a newer format, is refused and not touched.
#ifndef EBB_PS_RECOVER_H
#define EBB_PS_RECOVER_H

#include "ps/job.h"

#define EBB_SHARD_FORMAT 1

// Opens (or creates) the folder's store. why (>= 512 bytes) gets a full sentence. CONFIG: another shard's folder, or no shard folder at all. NEWER.
// CORRUPT, TRYLATER (in use), IO.
ebb_status ebb_recover_open(const char *dir, uint32_t shard, ebb_kvstore **out, char *why);

// The same for looking only: not a byte of the folder is changed, and no shard can begin to work on it until the store is closed. NOENT: no such folder, or no
// store in it yet (*shard is set then). format (may be NULL): the one found, for NEWER too.
ebb_status ebb_recover_open_read(const char *dir, uint32_t *format, uint32_t *shard, ebb_kvstore **out, char *why);
// Only the format file: NOENT (none), CONFIG (damaged, or something else), NEWER, IO.
ebb_status ebb_recover_read_format(const char *dir, uint32_t *format, uint32_t *shard, char *why);

// Stores a job that was installed just now, durably: after this a restart finds it. The job is at its initial state.
ebb_status ebb_recover_install(ebb_kvstore *kv, const ebb_job *job);

// Rebuilds the job from the folder: chunk rows, then the journal after them, watermarks, retired set. *out NULL: no job was installed yet.
// Bit-exact. CORRUPT with a sentence in why (>= 512 bytes) that names the chunk, record, or row. Works on a store that was opened for reading too, and writes
// nothing then.
ebb_status ebb_recover_job(const char *dir, ebb_kvstore *kv, ebb_journal *journal, ebb_job **out, char *why);

// Retired set row. load: nothing stored changes nothing; CORRUPT with a sentence in why (>= 256 bytes).
void ebb_recover_put_retired(ebb_kvbatch *b, const ebb_streams *s);
ebb_status ebb_recover_load_retired(ebb_kvstore *kv, ebb_streams *s, char *why);

#endif
