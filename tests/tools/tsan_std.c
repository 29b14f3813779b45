/* Tells ThreadSanitizer of the orders that std's slow paths bring about.
 *
 * std comes compiled without it. A mutex that is free is taken by an atomic inlined into the tested
 * crate, which it sees; one that is not is taken inside std, unseen, and everything the mutex
 * guards would look like a race. sanitize.py links the calls into std through these functions, with
 * the mangled names of the compiler at hand as macros. Locks start with their futex word, so its
 * address is theirs. */
#include <stdbool.h>
#include <stdint.h>

void __tsan_acquire(void *address);
void __tsan_release(void *address);

#define JOIN(a, b) a##b
#define WRAP(name) JOIN(__wrap_, name)
#define REAL(name) JOIN(__real_, name)

void REAL(MUTEX_LOCK)(void *mutex);
void WRAP(MUTEX_LOCK)(void *mutex) {
  REAL(MUTEX_LOCK)(mutex);
  __tsan_acquire(mutex);
}

void REAL(RWLOCK_READ)(void *lock);
void WRAP(RWLOCK_READ)(void *lock) {
  REAL(RWLOCK_READ)(lock);
  __tsan_acquire(lock);
}

void REAL(RWLOCK_WRITE)(void *lock);
void WRAP(RWLOCK_WRITE)(void *lock) {
  REAL(RWLOCK_WRITE)(lock);
  __tsan_acquire(lock);
}

/* Waiting gives the mutex back and takes it again. */
void REAL(CONDVAR_WAIT)(void *condvar, void *mutex);
void WRAP(CONDVAR_WAIT)(void *condvar, void *mutex) {
  __tsan_release(mutex);
  REAL(CONDVAR_WAIT)(condvar, mutex);
  __tsan_acquire(mutex);
}

bool REAL(CONDVAR_WAIT_TIMEOUT)(void *condvar, void *mutex, uint64_t seconds, uint32_t nanoseconds);
bool WRAP(CONDVAR_WAIT_TIMEOUT)(void *condvar, void *mutex, uint64_t seconds, uint32_t nanoseconds) {
  __tsan_release(mutex);
  bool woken = REAL(CONDVAR_WAIT_TIMEOUT)(condvar, mutex, seconds, nanoseconds);
  __tsan_acquire(mutex);
  return woken;
}

/* Who finds it done takes the fast path, an acquiring load of the same word. */
void REAL(ONCE_CALL)(void *once, uint64_t a, void *b, void *c, void *d);
void WRAP(ONCE_CALL)(void *once, uint64_t a, void *b, void *c, void *d) {
  REAL(ONCE_CALL)(once, a, b, c, d);
  __tsan_acquire(once);
  __tsan_release(once);
}
