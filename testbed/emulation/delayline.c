/* The delay line: carries frames between network interfaces, each path with its own rate and propagation delay.
 *
 * It stands in for netem on kernels that lack it, and needs no privilege beyond those inside one's own network
 * namespace: it reads frames with packet sockets and sends them on with packet sockets.
 *
 * Theory of operation
 *   1. A path is one direction of a link: frames that arrive on interface IN leave on interface OUT.
 *   2. A frame of n bytes on the wire is due at max(arrival, when the frame before it had been sent) + n / rate,
 *      and leaves `delay` later. HTB lets a packet go when its transmission would begin, and a whole burst after
 *      a pause; here each is held until its transmission would have ended.
 *   3. Arrival is the kernel's timestamp, so a process that wakes up late does not add to the delay as long as it
 *      wakes before the frame is due. How late frames did leave is counted, and told on request.
 *   4. Frames keep their offloads (PACKET_VNET_HDR): a 64 KB TCP segment crosses as one, but its length on the
 *      wire is that of the packets it stands for, headers included, as HTB counts it.
 *   5. Nothing is dropped in silence: each drop is counted per path.
 *
 * Standard input, one command a line, before "start" only `path`:
 *   path IN OUT DELAY_NS BYTES_PER_S      add a path; paths are numbered from 0
 *   start                                 answers {"paths": N, "realtime": true|false}
 *   rate PATH BYTES_PER_S                 change a path's rate for the frames still to come
 *   delay PATH DELAY_NS                   change a path's delay for the frames still to come; none overtakes another
 *   report                                answers one line of JSON (see report())
 * The process ends at the end of input, hence with its parent. Errors: one line on standard error, status 1.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#ifndef PACKET_IGNORE_OUTGOING
#define PACKET_IGNORE_OUTGOING 23
#endif

enum {
    MAX_PATHS = 2048,
    MAX_FRAME = 1 << 17,           /* bytes; a GSO frame is at most 64 KB and its Ethernet header */
    BATCH = 32,                    /* frames read from one path before the others have their turn */
    RECEIVE_BUFFER = 32 << 20,     /* bytes asked for; the kernel caps it at net.core.rmem_max without privilege */
    BUCKET_NS = 10000,             /* resolution of the lateness histogram */
    BUCKETS = 5000,                /* the last one holds 50 ms and more */
};
static const uint64_t SECOND_NS = 1000000000;
static const uint64_t MAX_HELD = 1ull << 30; /* bytes held on one path; a bound on memory, far over any BDP */

struct frame {
    struct frame *next;
    uint64_t due_ns;
    uint32_t size; /* virtio_net_hdr included */
    char bytes[];
};

struct path {
    int in;                       /* socket */
    struct sockaddr_ll out;       /* interface */
    uint64_t delay_ns, bytes_per_s;
    uint64_t free_ns; /* when the frame before has been sent */
    struct frame *head, *tail;
    uint64_t held; /* bytes */
    uint64_t frames, wire_bytes, overflows, failed, missed;
};

static struct path paths[MAX_PATHS];
static int path_count, out;
static uint64_t lateness[BUCKETS], late_max_ns;
static bool started, realtime;

static void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

static uint64_t clock_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * SECOND_NS + (uint64_t)t.tv_nsec;
}

static void enable(int fd, int level, int option, const char *name) {
    int one = 1;
    if (setsockopt(fd, level, option, &one, sizeof one))
        die("delay line: the kernel refuses %s: %s (Linux 4.20 or later is needed)", name, strerror(errno));
}

static int packet_socket(void) {
    int fd = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) die("delay line: no packet socket: %s", strerror(errno));
    enable(fd, SOL_PACKET, PACKET_VNET_HDR, "PACKET_VNET_HDR");
    return fd;
}

static int interface_index(const char *name) {
    unsigned index = if_nametoindex(name);
    if (!index) die("delay line: no interface %s", name);
    return (int)index;
}

static int receiver(const char *interface) {
    int fd = packet_socket(), size = RECEIVE_BUFFER;
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL),
                                  .sll_ifindex = interface_index(interface)};
    enable(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, "PACKET_IGNORE_OUTGOING");
    enable(fd, SOL_SOCKET, SO_TIMESTAMPNS, "SO_TIMESTAMPNS");
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size))
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    if (bind(fd, (struct sockaddr *)&address, sizeof address))
        die("delay line: bind to %s: %s", interface, strerror(errno));
    return fd;
}

/* One socket sends for all paths: the kernel takes some 15 ms to close a packet socket that has received. */
static int sender(void) {
    int fd = packet_socket();
    enable(fd, SOL_PACKET, PACKET_QDISC_BYPASS, "PACKET_QDISC_BYPASS");
    return fd;
}

/* Bytes a frame takes on the wire: a GSO frame counts its headers once per packet it stands for. */
static uint64_t wire_size(const char *bytes, uint32_t size) {
    struct virtio_net_hdr header;
    memcpy(&header, bytes, sizeof header);
    uint32_t length = size - sizeof header;
    uint8_t type = header.gso_type & (uint8_t)~VIRTIO_NET_HDR_GSO_ECN;
    bool tcp = type == VIRTIO_NET_HDR_GSO_TCPV4 || type == VIRTIO_NET_HDR_GSO_TCPV6;
    if (!tcp || !header.gso_size || header.csum_start + 20u > length) return length;
    uint32_t offset = (uint8_t)bytes[sizeof header + header.csum_start + 12] >> 4;
    uint32_t headers = header.csum_start + 4 * offset;
    if (headers >= length) return length;
    uint32_t segments = (length - headers + header.gso_size - 1) / header.gso_size;
    return length + (uint64_t)(segments - 1) * headers;
}

/* The kernel's arrival time on the monotonic clock: timestamps are wall-clock, so take the frame's age. */
static uint64_t arrival_ns(struct msghdr *message) {
    uint64_t now = clock_ns(CLOCK_MONOTONIC);
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SO_TIMESTAMPNS) continue;
        struct timespec stamp;
        memcpy(&stamp, CMSG_DATA(c), sizeof stamp);
        uint64_t then = (uint64_t)stamp.tv_sec * SECOND_NS + (uint64_t)stamp.tv_nsec;
        uint64_t wall = clock_ns(CLOCK_REALTIME);
        /* A frame that seems older than a second means that the wall clock was set: trust "now". */
        if (wall > then && wall - then < SECOND_NS) return now - (wall - then);
    }
    return now;
}

static bool read_frame(struct path *path) {
    static char buffer[MAX_FRAME];
    char control[CMSG_SPACE(sizeof(struct timespec))];
    struct iovec part = {buffer, sizeof buffer};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
                             .msg_controllen = sizeof control};
    ssize_t size = recvmsg(path->in, &message, MSG_DONTWAIT);
    if (size <= (ssize_t)sizeof(struct virtio_net_hdr)) return false;
    if ((message.msg_flags & MSG_TRUNC) || path->held + (uint64_t)size > MAX_HELD) {
        path->overflows++;
        return true;
    }
    struct frame *frame = malloc(sizeof *frame + (size_t)size);
    if (!frame) die("delay line: out of memory");
    uint64_t arrival = arrival_ns(&message), wire = wire_size(buffer, (uint32_t)size);
    uint64_t begin = arrival > path->free_ns ? arrival : path->free_ns;
    path->free_ns = begin + wire * SECOND_NS / path->bytes_per_s;
    *frame = (struct frame){.due_ns = path->free_ns + path->delay_ns, .size = (uint32_t)size};
    memcpy(frame->bytes, buffer, (size_t)size);
    if (path->tail) path->tail->next = frame;
    else path->head = frame;
    path->tail = frame;
    path->held += (uint64_t)size;
    path->wire_bytes += wire;
    path->frames++;
    return true;
}

/* Send what is due on a path; returns when the next frame is, or UINT64_MAX. */
static uint64_t send_due(struct path *path) {
    while (path->head) {
        struct frame *frame = path->head;
        uint64_t now = clock_ns(CLOCK_MONOTONIC);
        if (frame->due_ns > now) return frame->due_ns;
        uint64_t late = now - frame->due_ns, bucket = late / BUCKET_NS;
        lateness[bucket < BUCKETS ? bucket : BUCKETS - 1]++;
        if (late > late_max_ns) late_max_ns = late;
        struct sockaddr *to = (struct sockaddr *)&path->out;
        if (sendto(out, frame->bytes, frame->size, MSG_DONTWAIT, to, sizeof path->out) < 0) path->failed++;
        path->head = frame->next;
        if (!path->head) path->tail = NULL;
        path->held -= frame->size;
        free(frame);
    }
    return UINT64_MAX;
}

static double lateness_ms(double quantile) {
    uint64_t total = 0, seen = 0;
    for (int i = 0; i < BUCKETS; i++) total += lateness[i];
    for (int i = 0; i < BUCKETS && total; i++) {
        seen += lateness[i];
        if ((double)seen >= quantile * (double)total) return (i + 1) * (BUCKET_NS / 1e6);
    }
    return 0;
}

static void report(void) {
    printf("{\"realtime\": %s, \"lateness_p50_ms\": %.3f, \"lateness_p99_ms\": %.3f, \"lateness_max_ms\": %.3f, ",
           realtime ? "true" : "false", lateness_ms(0.5), lateness_ms(0.99), (double)late_max_ns / 1e6);
    printf("\"paths\": [");
    for (int i = 0; i < path_count; i++) {
        struct path *path = &paths[i];
        struct tpacket_stats kernel = {0}; /* reading resets it */
        socklen_t size = sizeof kernel;
        if (!getsockopt(path->in, SOL_PACKET, PACKET_STATISTICS, &kernel, &size)) path->missed += kernel.tp_drops;
        printf("%s{\"frames\": %" PRIu64 ", \"wire_bytes\": %" PRIu64 ", \"drops\": %" PRIu64
               ", \"delay_ns\": %" PRIu64 ", \"bytes_per_s\": %" PRIu64 "}",
               i ? ", " : "", path->frames, path->wire_bytes, path->missed + path->overflows + path->failed,
               path->delay_ns, path->bytes_per_s);
    }
    printf("]}\n");
}

/* Ask to be run at once when a frame is due: real time where allowed. Else a short slice (EEVDF, Linux 6.12) in a
 * session of its own, which is a scheduling group of its own where the kernel groups by session: four busy
 * processes of the run then delayed the 99th percentile of frames by 0.04 ms instead of 4. */
static void be_prompt(void) {
    setsid();
    struct sched_param priority = {.sched_priority = 10};
    realtime = sched_setscheduler(0, SCHED_FIFO, &priority) == 0;
    if (realtime) return;
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } attributes = {.size = 48, .policy = SCHED_OTHER, .runtime = 100000};
    if (setpriority(PRIO_PROCESS, 0, -20) == 0) attributes.nice = -20;
    syscall(SYS_sched_setattr, 0, &attributes, 0);
}

static void add_path(const char *from, const char *to, uint64_t delay_ns, uint64_t bytes_per_s) {
    if (path_count == MAX_PATHS) die("delay line: more than %d paths", MAX_PATHS);
    if (!bytes_per_s) die("delay line: path %s to %s has no rate", from, to);
    struct sockaddr_ll exit = {.sll_family = AF_PACKET, .sll_ifindex = interface_index(to)};
    paths[path_count++] = (struct path){.in = receiver(from), .out = exit, .delay_ns = delay_ns,
                                        .bytes_per_s = bytes_per_s};
}

/* Obey one line; returns false when it is "start". */
static bool obey(const char *line) {
    char from[IFNAMSIZ], to[IFNAMSIZ], extra;
    uint64_t delay_ns, bytes_per_s;
    int index;
    if (!started && sscanf(line, "path %15s %15s %" SCNu64 " %" SCNu64 " %c", from, to, &delay_ns, &bytes_per_s, &extra) == 4)
        add_path(from, to, delay_ns, bytes_per_s);
    else if (sscanf(line, "rate %d %" SCNu64 " %c", &index, &bytes_per_s, &extra) == 2 && index >= 0 &&
             index < path_count && bytes_per_s)
        paths[index].bytes_per_s = bytes_per_s;
    else if (sscanf(line, "delay %d %" SCNu64 " %c", &index, &delay_ns, &extra) == 2 && index >= 0 && index < path_count)
        paths[index].delay_ns = delay_ns;
    else if (!strcmp(line, "report\n"))
        report();
    else if (!strcmp(line, "start\n"))
        return false;
    else
        die("delay line: cannot understand: %s", line);
    return true;
}

/* Read what is there of the commands; complete lines are obeyed, the rest is kept. */
static void read_commands(void) {
    static char text[4096];
    static size_t length;
    ssize_t size = read(STDIN_FILENO, text + length, sizeof text - 1 - length);
    if (size <= 0) exit(0);
    length += (size_t)size;
    text[length] = 0;
    char *line = text, *end;
    while ((end = strchr(line, '\n'))) {
        char following = end[1];
        end[1] = 0;
        obey(line);
        end[1] = following;
        line = end + 1;
    }
    length -= (size_t)(line - text);
    memmove(text, line, length);
    if (length == sizeof text - 1) die("delay line: a command is too long");
}

static void set_timer(int timer, uint64_t due_ns) {
    struct itimerspec at = {.it_value = {(time_t)(due_ns / SECOND_NS), (long)(due_ns % SECOND_NS)}};
    if (due_ns == UINT64_MAX) at = (struct itimerspec){0};
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL);
}

static void watch(int epoll, int fd, uint32_t tag) {
    struct epoll_event event = {.events = EPOLLIN, .data = {.u32 = tag}};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event)) die("delay line: epoll: %s", strerror(errno));
}

static void carry(void) {
    enum { COMMANDS = MAX_PATHS, TIMER };
    struct epoll_event events[64];
    int epoll = epoll_create1(EPOLL_CLOEXEC), timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    uint64_t armed = UINT64_MAX;
    watch(epoll, STDIN_FILENO, COMMANDS);
    watch(epoll, timer, TIMER);
    for (int i = 0; i < path_count; i++) watch(epoll, paths[i].in, (uint32_t)i);
    for (;;) {
        int count = epoll_wait(epoll, events, 64, -1);
        for (int i = 0; i < count; i++) {
            uint32_t tag = events[i].data.u32;
            uint64_t expirations;
            if (tag == COMMANDS) read_commands();
            else if (tag == TIMER) armed = read(timer, &expirations, sizeof expirations) > 0 ? UINT64_MAX : armed;
            else for (int k = 0; k < BATCH && read_frame(&paths[tag]); k++) continue;
        }
        uint64_t next = UINT64_MAX;
        for (int i = 0; i < path_count; i++) {
            uint64_t due = send_due(&paths[i]);
            if (due < next) next = due;
        }
        if (next != armed) set_timer(timer, armed = next);
    }
}

int main(void) {
    /* Before "start" the commands come through stdio, unbuffered, so that none is left in a buffer after it. */
    char line[256];
    setvbuf(stdin, NULL, _IONBF, 0);
    setvbuf(stdout, NULL, _IOLBF, 0);
    out = sender();
    do
        if (!fgets(line, sizeof line, stdin)) return 0;
    while (obey(line));
    started = true;
    be_prompt();
    printf("{\"paths\": %d, \"realtime\": %s}\n", path_count, realtime ? "true" : "false");
    carry();
}
