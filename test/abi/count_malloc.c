/* Preloaded: counts allocations of the threads that ask for it. */
#include <stddef.h>

#define API __attribute__((visibility("default")))

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

static _Thread_local int counting;
static _Thread_local long count;

API void count_begin(void) { count = 0, counting = 1; }
API long count_end(void) {
  counting = 0;
  return count;
}
API void *malloc(size_t bytes) { return count += counting, __libc_malloc(bytes); }
API void *calloc(size_t items, size_t bytes) { return count += counting, __libc_calloc(items, bytes); }
API void *realloc(void *old, size_t bytes) { return count += counting, __libc_realloc(old, bytes); }
API void *memalign(size_t to, size_t bytes) { return count += counting, __libc_memalign(to, bytes); }
API void *aligned_alloc(size_t to, size_t bytes) { return count += counting, __libc_memalign(to, bytes); }
