// Always-on assertions for our own arguments and invariants; never for what a peer, a disk or a user gave.
#ifndef EBB_CORE_ASSERT_H
#define EBB_CORE_ASSERT_H

// Prints one line (file, line, expression or message) to stderr with a backtrace and aborts.
_Noreturn void ebb_panic(const char *file, int line, const char *what);

#define EBB_PANIC(what) ebb_panic(__FILE__, __LINE__, (what))
#define EBB_ASSERT(cond)                          \
    do {                                          \
        if (__builtin_expect(!(cond), 0)) {       \
            ebb_panic(__FILE__, __LINE__, #cond); \
        }                                         \
    } while (0)

#endif
