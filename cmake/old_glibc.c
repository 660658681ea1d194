// Symbols that Debian 12's libstdc++.a asks of glibc and that glibc 2.34 does not have yet. Hidden,
// so that those of a newer glibc stay what others call.
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>

// std::random_device: glibc 2.36.
__attribute__((visibility("hidden"))) uint32_t arc4random(void) {
  uint32_t value = 0;
  while (getrandom(&value, sizeof value, 0) != sizeof value) {
    if (errno != EINTR) abort();
  }
  return value;
}
