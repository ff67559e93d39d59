// Writes the folders that tests/golden keeps: `writer shard|snapshot|coordinator DIR`. tests/golden/make calls it.
#include <stdio.h>
#include <string.h>

#include "tests/support/countershard.h"
#include "tests/support/counterstore.h"

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "shard") == 0) {
        counterjob_write_shard(argv[2], "journal", NULL, NULL);
    } else if (argc == 3 && strcmp(argv[1], "snapshot") == 0) {
        counterjob_write_shard(argv[2], "snapshot", NULL, NULL);
    } else if (argc == 3 && strcmp(argv[1], "coordinator") == 0) {
        counterstore_write(argv[2]);
    } else {
        fprintf(stderr, "usage: writer shard|snapshot|coordinator DIR\n");
        return 64;
    }
    return 0;
}
