/* overhead.c: memory of a process beside its slab and beside mapped experts. The slab is exact; these are bounds, each of which a run stays
 * below: resident memory at its peak is at most slab + mapped + overhead, give or take 3 % (test/test_memory.c).
 *
 *   program     pages of the binary, of libc, libgomp and libm that are touched, and libc's heap outside of pools: 6.4 MiB of files and 2 to 4
 *               of heap, whatever the model (Zen 3, glibc 2.36)
 *   compile     the recipe, the model and the compiled programs: the session's pool, counted
 *   threads     stacks of OpenMP's threads, which kernels use for tiles, and an arena of libc for each
 *   tokenizer   tables of a tokenizer that comes from a file: merges, bytes of each id, hashes: about 8 times the file
 *   checkpoint  of a base in a directory: its index, headers of its shards, what is read at a time: 2 MiB and 8 times the index
 *   data        text as it is mapped, and a word of 4 bytes for each token, of which there are at most as many as bytes. Pages of files: the
 *               system may drop them
 */
#include "train/overhead.h"
#include <dirent.h>
#include <sys/stat.h>

enum { PROGRAM = 10 << 20, THREAD = 256 << 10, TOKENIZER = 8, DATA = 5, INDEX = 8, BASE = 2 << 20 };

static int64_t file_bytes(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) ? (int64_t)st.st_size : 0;
}

/* A file, or all files of a directory */
static int64_t source_bytes(const char *path)
{
    DIR *d = opendir(path);
    int64_t n = 0;
    if (!d) return file_bytes(path);
    for (const struct dirent *e = readdir(d); e; e = readdir(d)) {
        char at[4096];
        if (e->d_name[0] != '.' && snprintf(at, sizeof at, "%s/%s", path, e->d_name) < (int)sizeof at) n += file_bytes(at);
    }
    closedir(d);
    return n;
}

static int64_t data_bytes(const cdr_session *s)
{
    const cdr_sources *list[] = { &s->r.data.train, &s->r.data.eval };
    int64_t n = 0;
    for (int l = 0; l < CDR_COUNT(list); l++)
        for (int i = 0; i < list[l]->n; i++) n += source_bytes(list[l]->s[i].path);
    return n;
}

static int64_t tokenizer_bytes(const cdr_session *s)
{
    static const char *const file[] = { "tiktoken.model", "tokenizer.json" };
    const char *own = cdr_model_dir(s->model), *from = strcmp(s->r.data.tokenizer, "model") == 0 ? own : s->r.data.tokenizer;
    int64_t most = from ? file_bytes(from) : 0;
    for (int i = 0; from && i < CDR_COUNT(file); i++) most = CDR_MAX(most, file_bytes(cdr_pool_printf(s->pool, "%s/%s", from, file[i])));
    return most;
}

static int64_t checkpoint_bytes(const cdr_session *s)
{
    const char *dir = cdr_model_dir(s->model);
    return dir ? BASE + INDEX * file_bytes(cdr_pool_printf(s->pool, "%s/model.safetensors.index.json", dir)) : 0;
}

int cdr__overhead(const cdr_session *s, cdr__overhead_item item[CDR__OVERHEAD])
{
    const cdr__overhead_item all[CDR__OVERHEAD] = {
        { "program", "binary, libraries, heap", PROGRAM },
        { "compile", "recipe, model, programs", s->compile_bytes },
        { "threads", "stacks and arenas", (int64_t)THREAD * CDR_MAX(s->opts.n_threads, 1) },
        { "tokenizer", "tables", TOKENIZER * tokenizer_bytes(s) },
        { "checkpoint", "index of the base, buffers", checkpoint_bytes(s) },
        { "data", "text and tokens, pages of files", DATA * data_bytes(s) },
    };
    int n = 0;
    for (int i = 0; i < CDR__OVERHEAD; i++) if (all[i].bytes > 0) item[n++] = all[i];
    return n;
}

int64_t cdr__overhead_bytes(const cdr_session *s)
{
    cdr__overhead_item item[CDR__OVERHEAD];
    int64_t sum = 0;
    for (int i = 0, n = cdr__overhead(s, item); i < n; i++) sum += item[i].bytes;
    return sum;
}
