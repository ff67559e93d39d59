// The outer form of RocksDB's log files (the write-ahead log and MANIFEST): whole records or not? Nothing inside a record is looked at.
//
// A log is cut into blocks of 32 KiB. A record is one or more fragments, none of which crosses a block; a block's last bytes, too few for a header, are zero.
//   fragment: 0 masked crc32c u32 of everything from the type on | 4 length u16 | 6 type u8 | [7 log number u32, types 5 to 8] | bytes
//   type: 1 whole record, 2 first, 3 middle, 4 last fragment; 5 to 8 the same in a file that is written over an older one
// RocksDB itself takes a length that points beyond the file's end for a write that a crash cut short, and drops the rest in silence. Whoever knows how far
// the file was synced (core/kvmark) can tell that from damage, and needs the walk for it.
#ifndef EBB_CORE_KVLOG_H
#define EBB_CORE_KVLOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ebb_kvlog_walk {
    uint64_t whole;   // bytes from the beginning that are whole records
    uint64_t records; // in them
    uint64_t at;      // offset of the first fragment that is not in order, or the length
    const char *bad;  // what is wrong there; NULL: the bytes end with a whole record
} ebb_kvlog_walk;

// Walks data from its first byte. Reads nothing beyond len, whatever the bytes are. Static text in bad.
void ebb_kvlog_walk_bytes(const uint8_t *data, size_t len, ebb_kvlog_walk *out);

#endif
