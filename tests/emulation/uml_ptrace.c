/* LD_PRELOAD for user-mode-linux on CPUs whose register state is larger than it knows (AMX, 2023).
 *
 * Its kernel sets a process's floating-point registers with a buffer of 2,696 bytes; Linux refuses any length but the
 * CPU's own, and the guest dies at its first process. Here the whole state is read, the part that
 * user-mode-linux knows is laid over it, and the whole is set.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>

static long (*original)(enum __ptrace_request, ...);
static char state[1 << 16]; /* the guest kernel's stacks are small */

__attribute__((constructor)) static void find(void) {
    *(void **)&original = dlsym(RTLD_NEXT, "ptrace");
}

long ptrace(enum __ptrace_request request, ...) {
    va_list arguments;
    va_start(arguments, request);
    pid_t process = va_arg(arguments, pid_t);
    void *address = va_arg(arguments, void *), *data = va_arg(arguments, void *);
    va_end(arguments);
    if (request != PTRACE_SETREGSET || address != (void *)NT_X86_XSTATE)
        return original(request, process, address, data);
    const struct iovec *known = data;
    struct iovec whole = {state, sizeof state};
    if (original(PTRACE_GETREGSET, process, address, &whole)) return -1;
    memcpy(state, known->iov_base, known->iov_len < whole.iov_len ? known->iov_len : whole.iov_len);
    return original(PTRACE_SETREGSET, process, address, &whole);
}
