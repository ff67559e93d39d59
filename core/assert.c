#include "core/assert.h"

#include <execinfo.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

_Noreturn void ebb_panic(const char *file, int line, const char *what)
{
    void *frames[32];
    fprintf(stderr, "panic: %s:%d: %s\n", file, line, what);
    fflush(stderr);
    backtrace_symbols_fd(frames, backtrace(frames, 32), STDERR_FILENO);
    abort();
}
