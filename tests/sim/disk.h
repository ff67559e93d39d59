// A disk under core/kvstore.h, in memory: ordered rows, atomic batches, one log in write order, and what crashes do to it.
//
// Invariant: the rows a process sees = the durable rows + all logged batches, in order. A sync moves the log's head into the durable rows. kill -9 loses
// nothing that was logged; power loss keeps the durable rows and some prefix of the log, whole batches only, and forgets the rest.
//
// kvstore_sim.c implements core/kvstore.h on it and is linked in core/kvstore.c's place. A folder's name finds its disk (sim_disk_mount).
#ifndef EBB_TESTS_SIM_DISK_H
#define EBB_TESTS_SIM_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/kvstore.h"
#include "tests/sim/dice.h"

typedef struct sim_disk sim_disk;

typedef enum disk_op { DISK_READ, DISK_WRITE, DISK_SYNC } disk_op;
typedef enum disk_fault {
    DISK_FINE,
    DISK_FAILS_BEFORE, // the operation does nothing and says IO
    DISK_FAILS_AFTER,  // the operation is done and says IO: its caller cannot know
} disk_fault;

// Asked before each operation. A process that is crashing answers DISK_FAILS_BEFORE to everything.
typedef disk_fault disk_hook(void *arg, disk_op op);

sim_disk *sim_disk_new(bool of_shard);
void sim_disk_free(sim_disk **disk);

// ebb_kvstore_open(dir) opens this disk from now on. At most SIM_MOUNTS at once; unmount all between runs.
#define SIM_MOUNTS 8
void sim_disk_mount(const char *dir, sim_disk *disk, disk_hook *hook, void *arg);
void sim_disk_unmount_all(void);

// The process ended (handles were closed): nothing logged is lost.
void sim_disk_killed(sim_disk *disk);
// Keeps the durable rows and the first `keep` batches of the log (keep <= sim_disk_logged).
void sim_disk_power_loss(sim_disk *disk, size_t keep);
size_t sim_disk_logged(const sim_disk *disk); // batches not synced

// For threads that sync while others write: position now; everything logged before the position becomes durable.
uint64_t sim_disk_position(const sim_disk *disk);
ebb_status sim_kvstore_sync_upto(ebb_kvstore *kv, uint64_t position);
sim_disk *sim_kvstore_disk(ebb_kvstore *kv);

// A durable row, borrowed until the next sync; false: there is none.
bool sim_disk_durable(const sim_disk *disk, const void *key, size_t key_len, const uint8_t **value, size_t *len);
// Rows a process would see whose keys begin with that letter.
size_t sim_disk_count(const sim_disk *disk, char letter);

#endif
