// main for a fuzz target without a fuzzer: feeds it every file that is named, or that lies in a folder that is named.
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/fuzz/fuzz.h"

static int s_file(const char *path)
{
    FILE *f = fopen(path, "rbe");
    uint8_t *data = NULL;
    size_t len = 0, cap = 0, got = 1;
    while (f != NULL && got > 0) {
        if (len == cap) {
            cap = cap > 0 ? 2 * cap : 4096;
            data = realloc(data, cap);
            if (data == NULL) {
                break;
            }
        }
        got = fread(data + len, 1, cap - len, f);
        len += got;
    }
    if (f == NULL || data == NULL || ferror(f)) {
        fprintf(stderr, "%s cannot be read\n", path);
        exit(66);
    }
    fclose(f);
    fprintf(stderr, "%s (%zu bytes)\n", path, len); // the last line before a crash names its input
    uint8_t *exact = malloc(len > 0 ? len : 1);     // of that size, so that a byte read too far is seen
    if (exact == NULL) {
        exit(71);
    }
    memcpy(exact, data, len);
    free(data);
    LLVMFuzzerTestOneInput(exact, len);
    free(exact);
    return 1;
}

static int s_folder(const char *path)
{
    struct dirent **entries = NULL;
    int found = 0, n = scandir(path, &entries, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        char file[4096];
        struct stat info;
        snprintf(file, sizeof(file), "%s/%s", path, entries[i]->d_name);
        if (stat(file, &info) == 0 && S_ISREG(info.st_mode)) {
            found += s_file(file);
        }
        free(entries[i]);
    }
    free(entries);
    return found;
}

int main(int argc, char **argv)
{
    int found = 0;
    for (int i = 1; i < argc; i++) {
        struct stat info;
        if (stat(argv[i], &info) == 0) { // a target without regressions has no folder for them
            found += S_ISDIR(info.st_mode) ? s_folder(argv[i]) : s_file(argv[i]);
        }
    }
    if (found == 0) {
        fprintf(stderr, "no inputs: name files, or folders of files\n");
        return 64;
    }
    return 0;
}
