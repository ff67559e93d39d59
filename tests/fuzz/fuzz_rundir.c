// The files of a run's folder as `ebb status`, `ebb events` and the next `ebb run` read them after the run has stopped.
//
// Input: files u8 (which are there), then each as length u16 and bytes: job.yaml, sock.path, result.json, events.log, metrics.jsonl.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "tools/ebb/rundir.h"
#include "tools/ebb/verbs.h"

static const char *const s_leaves[] = {"job.yaml", "sock.path", "result.json", "events.log", "metrics.jsonl"};
#define N_LEAVES (sizeof(s_leaves) / sizeof(s_leaves[0]))

// In place of the command's own, which prints.
int ebb_complain(ebb_status st, const char *fmt, ...)
{
    char text[PATH_MAX + 256];
    va_list ap;
    va_start(ap, fmt);
    FUZZ_CHECK(vsnprintf(text, sizeof(text), fmt, ap) > 0);
    va_end(ap);
    return (int)st;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_quiet();
    fuzz_in in = {data, size};
    uint8_t there = fuzz_u8(&in);
    size_t len[N_LEAVES];
    for (size_t i = 0; i < N_LEAVES; i++) {
        const uint8_t *bytes = fuzz_bytes(&in, &len[i]);
        if ((there >> i & 1) != 0) {
            fuzz_file(s_leaves[i], bytes, len[i]);
        } else {
            fuzz_unlink(s_leaves[i]);
        }
    }
    ebb_rundir r;
    char why[512] = "", endpoint[PATH_MAX];
    ebb_status st = ebb_rundir_pick(&r, fuzz_folder(), why);
    FUZZ_CHECK(st == ((there & 1) != 0 ? EBB_OK : EBB_NOENT));
    if (st != EBB_OK) {
        FUZZ_CHECK(strstr(why, fuzz_folder()) != NULL);
        ebb_rundir_name(&r, fuzz_folder());
        ebb_rundir_find_sock(&r);
    }
    FUZZ_CHECK(strlen(r.sock) < sizeof(r.sock) && strchr(r.sock, '\n') == NULL);
    ebb_rundir_endpoint(&r, "coordinator", endpoint, sizeof(endpoint));
    bool is_run = ebb_rundir_is_run(&r);
    FUZZ_CHECK(!is_run || (there & 1) != 0);
    FUZZ_CHECK(is_run == (ebb_rundir_foreign(&r) == NULL) || there % 32 == 0);
    FUZZ_CHECK(!ebb_rundir_finished(&r) || (there & 4) != 0);
    for (size_t i = 0; i < N_LEAVES; i++) {
        size_t got = 0;
        char *text = ebb_rundir_read(&r, s_leaves[i], &got);
        FUZZ_CHECK((text != NULL) == ((there >> i & 1) != 0) && (text == NULL || (got == len[i] && text[got] == '\0')));
        free(text);
    }
    for (int json = 0; json <= 1; json++) {
        int code = ebb_verb_status_ended(&r, json);
        FUZZ_CHECK((there & 4) != 0 ? code == EBB_OK || code == EBB_CORRUPT : code == EBB_TRYLATER);
        FUZZ_CHECK(ebb_events_print_log(&r, json ? "eval" : NULL, json) == ebb_events_last_id(&r));
    }
    return 0;
}
