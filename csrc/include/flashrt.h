/* The C interface of flashrt: drives a session that Python has set up, without Python.
 *
 * A program loads a policy through Python once, and calls `session.export()` there. The address that
 * it gets is a flashrt_session. From then on this interface alone drives: it writes inputs, replays
 * stages, reads outputs, saves and restores state. docs/c_interface.md shows who owns what.
 *
 * Threads. One handle is used by one thread at a time. Different handles may be used by different
 * threads at once: sessions of one engine share its device, and a lock puts their work in order. No
 * call may be made by a thread that holds Python's GIL: on the CPU device a replay takes it.
 *
 * Python may take the sessions back at any time: it waits for calls that are under way, and what is
 * called later answers E_CLOSED.
 *
 * Memory. write_input, run_stage, decide, act, read_output, snapshot and restore allocate nothing.
 * Texts and records that a call hands out live until Python takes the sessions back; flashrt_last_error
 * until the next failure in the same thread.
 *
 * Versions. Every record begins with struct_size, which the caller sets to sizeof of the record it was
 * compiled with. Fields are only appended, so the library fills the part that both know and sets
 * struct_size to the bytes that it filled. A size below that of the first version is refused. Fields say
 * which version of the library brought them; flashrt_abi_version tells that of the one that is loaded.
 *
 * Indices count from 0 in the order of the records; names are looked up with flashrt_find.
 */
#ifndef FLASHRT_H
#define FLASHRT_H

#include <stdint.h>

#if defined(__GNUC__)
#define FLASHRT_API __attribute__((visibility("default")))
#else
#define FLASHRT_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define FLASHRT_ABI_VERSION 2u
#define FLASHRT_NONE UINT32_MAX /* an index of nothing */
#define FLASHRT_MAX_RANK 8
#define FLASHRT_MAX_STAGES 16
#define FLASHRT_MAX_INPUTS 32
#define FLASHRT_NAME_BYTES 256 /* with the zero behind it */
#define FLASHRT_DIGEST_BYTES 65

typedef struct flashrt_session flashrt_session;

/* 0, or why a call did nothing. -1 to -9 exist here only; the others are the negative of the error's
 * code in Python and in the ROS services. */
typedef int32_t flashrt_status;
enum {
  FLASHRT_OK = 0,
  FLASHRT_E_ARGUMENT = -1,       /* a null pointer, an unknown flag, or text that is no name */
  FLASHRT_E_STRUCT_SIZE = -2,    /* struct_size below the first version of the record */
  FLASHRT_E_INDEX = -3,          /* an index beyond the records, or a name that none has */
  FLASHRT_E_BYTES = -4,          /* another number of bytes than the input or output has */
  FLASHRT_E_UNWRITTEN = -5,      /* a stage reads an input that was not written, or not since a restore */
  FLASHRT_E_NOT_MADE = -6,       /* an output or a capsule of something that no stage has made yet */
  FLASHRT_E_FINGERPRINT = -7,    /* state of another plan */
  FLASHRT_E_CLOSED = -8,         /* the handle was closed, or Python has taken the session back */
  FLASHRT_E_VERSION = -9,        /* the two halves of the package are of different versions */
  FLASHRT_E_INPUT = -11,         /* a value that its input cannot take: NaN, out of range, any after set-up */
  FLASHRT_E_STALE = -12,         /* a stage would act on results made from older inputs, or on none */
  FLASHRT_E_SHAPE = -13,         /* no shape in use, or one that was not captured */
  FLASHRT_E_DEVICE = -20,        /* the device failed; retained state is void */
  FLASHRT_E_NUMERICS = -22,      /* a stage produced values that are not finite */
  FLASHRT_E_CAPSULE = -40,       /* no capsule of that name, or one of another session */
  FLASHRT_E_CAPSULE_FULL = -41,  /* no free slot; nothing is evicted unasked */
  FLASHRT_E_SESSION = -50,       /* a session's name is taken, or the session is not this side's to close */
  FLASHRT_E_SESSION_LIMIT = -51, /* as many sessions as were configured */
  FLASHRT_E_INTERNAL = -99       /* a defect of this library */
};

enum { FLASHRT_DEVICE_CPU = 1, FLASHRT_DEVICE_CUDA = 2 };
enum {
  FLASHRT_F32 = 1,
  FLASHRT_F16 = 2,
  FLASHRT_BF16 = 3,
  FLASHRT_F8E4M3 = 4,
  FLASHRT_I8 = 5,
  FLASHRT_U8 = 6,
  FLASHRT_I32 = 7,
  FLASHRT_I64 = 8
};
/* Who may change a buffer: nobody, the host, a stage for later stages, a stage for itself. */
enum { FLASHRT_STATIC = 1, FLASHRT_SWAP = 2, FLASHRT_STATE = 3, FLASHRT_SCRATCH = 4 };
/* How the host may change an input: write it; write it, then a transform runs; only at set-up. */
enum { FLASHRT_UPDATE_SWAP = 1, FLASHRT_UPDATE_STAGED = 2, FLASHRT_UPDATE_SETUP = 3 };
/* What makes a value change. */
enum {
  FLASHRT_RATE_PROMPT = 1,
  FLASHRT_RATE_OBSERVATION = 2,
  FLASHRT_RATE_STEP = 3,
  FLASHRT_RATE_CHUNK = 4
};
/* What a session holds of a stage: nothing, a result of older inputs, one of the current inputs. */
enum { FLASHRT_ABSENT = 0, FLASHRT_STALE = 1, FLASHRT_CURRENT = 2 };
enum { FLASHRT_PLACE_DEVICE = 1, FLASHRT_PLACE_HOST = 2 };
enum {
  FLASHRT_KIND_BUFFER = 1,
  FLASHRT_KIND_INPUT = 2,
  FLASHRT_KIND_OUTPUT = 3,
  FLASHRT_KIND_STAGE = 4,
  FLASHRT_KIND_REGION = 5, /* of the shape in use */
  FLASHRT_KIND_SLOT = 6    /* by the capsule in it */
};
/* Flags of run_stage, act and read_output_flags. */
enum { FLASHRT_ALLOW_STALE = 1 }; /* accept results made from older inputs, never missing ones */

typedef struct flashrt_info {
  uint32_t struct_size;
  uint32_t abi_version;
  uint32_t device;
  uint32_t streams, shapes, graphs, buffers, inputs, outputs, stages, regions, slots;
  uint32_t sessions;     /* at present */
  uint32_t max_sessions;
  uint32_t working_sets; /* sets of buffers that sessions are spread over */
  uint32_t reserved;
  const char *policy;
  uint64_t switches;    /* times that a session had to make room for another */
  uint64_t moved_bytes; /* that this took */
} flashrt_info;

typedef struct flashrt_fingerprint {
  uint32_t struct_size;
  uint32_t reserved;
  char digest[FLASHRT_DIGEST_BYTES]; /* SHA-256 over the identity, in hex digits */
  const char *identity;              /* a line `part: value` for everything that it covers */
} flashrt_fingerprint;

typedef struct flashrt_stream {
  uint32_t struct_size;
  uint32_t device;
  void *handle; /* CUstream; null on the CPU */
} flashrt_stream;

typedef struct flashrt_shape {
  uint32_t struct_size;
  uint32_t views, prompt_tokens, horizon, steps;
} flashrt_shape;

/* A captured sequence of stages for one shape, over this session's buffers. */
typedef struct flashrt_graph {
  uint32_t struct_size;
  uint32_t shape;
  uint64_t stages;  /* bit i: stage i; they run in this order */
  void *executable; /* CUgraphExec; null on the CPU */
} flashrt_graph;

typedef struct flashrt_buffer {
  uint32_t struct_size;
  uint32_t role, dtype, rank;
  const char *name;
  uint64_t address; /* fixed; on the device */
  uint64_t bytes;
  uint64_t shape[FLASHRT_MAX_RANK];
} flashrt_buffer;

typedef struct flashrt_input {
  uint32_t struct_size;
  uint32_t buffer, dtype, rank, update, rate;
  uint32_t transform; /* stage that a staged input needs; else FLASHRT_NONE */
  uint32_t shorter;   /* 1: a value may have fewer elements */
  const char *name;
  const char *unit;
  uint64_t bytes;
  uint64_t shape[FLASHRT_MAX_RANK];
  /* Version 2: the whole numbers that it takes in the shape in use, both ends too; INT64_MIN and INT64_MAX
   * where it takes all, or no shape is in use. */
  int64_t lowest, highest;
} flashrt_input;

typedef struct flashrt_output {
  uint32_t struct_size;
  uint32_t buffer, dtype, rank;
  const char *name;
  const char *unit;
  uint64_t bytes;
  uint64_t shape[FLASHRT_MAX_RANK];
} flashrt_output;

typedef struct flashrt_stage {
  uint32_t struct_size;
  uint32_t rate;
  uint32_t transform; /* 1: belongs to staged inputs, and is no part of a decision's graph */
  uint32_t validity;  /* of what this session holds of it, now */
  const char *name;
  uint64_t requires_stages; /* bit i: stage i must have run on the current inputs */
  uint64_t reads_inputs;    /* bit i: it reads input i itself */
  uint64_t writes_outputs;  /* bit i: it makes output i */
} flashrt_stage;

/* Restorable bytes of a buffer: rows runs of row_bytes, pitch bytes apart. */
typedef struct flashrt_region {
  uint32_t struct_size;
  uint32_t shape, buffer, rows;
  const char *name;
  uint64_t offset, row_bytes, pitch;
} flashrt_region;

typedef struct flashrt_slot {
  uint32_t struct_size;
  uint32_t place;
  uint32_t full;  /* 0: free, and what follows but capacity means nothing */
  uint32_t shape;
  uint64_t capacity, bytes;
  uint64_t decision; /* index of the next decision after a restore */
  int64_t created_ns;
  char name[FLASHRT_NAME_BYTES];
  char session[FLASHRT_NAME_BYTES];
} flashrt_slot;

typedef struct flashrt_state {
  uint32_t struct_size;
  uint32_t shape; /* in use, or FLASHRT_NONE */
  uint32_t working_set;
  uint32_t resident;  /* 1: its state is in the buffers */
  uint64_t decisions; /* made so far; the index of the next */
  char name[FLASHRT_NAME_BYTES];
} flashrt_state;

/* What a replay did. */
typedef struct flashrt_report {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t stages;  /* bit i: stage i ran */
  uint64_t index;   /* of the decision */
  double wall_us;   /* from the call to its results on the host */
  float stage_ms[FLASHRT_MAX_STAGES]; /* by the device's clock; 0 for those that did not run */
} flashrt_report;

/* FLASHRT_ABI_VERSION of the library. */
FLASHRT_API uint32_t flashrt_abi_version(void);
/* What a status means, in a few words; never null. */
FLASHRT_API const char *flashrt_strerror(flashrt_status status);
/* One line about this thread's last failure: what, expected, got, remedy. Never null. */
FLASHRT_API const char *flashrt_last_error(void);

/* Records. E_ARGUMENT, E_STRUCT_SIZE, E_INDEX, E_CLOSED. */
FLASHRT_API flashrt_status flashrt_get_info(flashrt_session *session, flashrt_info *out);
FLASHRT_API flashrt_status flashrt_get_fingerprint(flashrt_session *session, flashrt_fingerprint *out);
FLASHRT_API flashrt_status flashrt_get_state(flashrt_session *session, flashrt_state *out);
FLASHRT_API flashrt_status flashrt_get_stream(flashrt_session *session, uint32_t index, flashrt_stream *out);
FLASHRT_API flashrt_status flashrt_get_shape(flashrt_session *session, uint32_t index, flashrt_shape *out);
FLASHRT_API flashrt_status flashrt_get_graph(flashrt_session *session, uint32_t index, flashrt_graph *out);
FLASHRT_API flashrt_status flashrt_get_buffer(flashrt_session *session, uint32_t index, flashrt_buffer *out);
FLASHRT_API flashrt_status flashrt_get_input(flashrt_session *session, uint32_t index, flashrt_input *out);
FLASHRT_API flashrt_status flashrt_get_output(flashrt_session *session, uint32_t index, flashrt_output *out);
FLASHRT_API flashrt_status flashrt_get_stage(flashrt_session *session, uint32_t index, flashrt_stage *out);
FLASHRT_API flashrt_status flashrt_get_region(flashrt_session *session, uint32_t index, flashrt_region *out);
FLASHRT_API flashrt_status flashrt_get_slot(flashrt_session *session, uint32_t index, flashrt_slot *out);
/* The index of a name among the records of one FLASHRT_KIND. */
FLASHRT_API flashrt_status flashrt_find(flashrt_session *session, uint32_t kind, const char *name,
                                        uint32_t *index);

/* Use a captured shape. Retained results of another shape are forgotten, and inputs that have another
 * range in this one count as unwritten: write them behind this call. E_SHAPE. */
FLASHRT_API flashrt_status flashrt_select_shape(flashrt_session *session, uint32_t shape);

/* Keep a value for the next replay: all bytes of the input, or fewer where it may be shorter; its numbers
 * are finite, and whole ones in the range that flashrt_input gives. What was made from an older value is
 * stale from now on. The same bytes again for a staged input change nothing. Once a replay has taken it,
 * it counts until another session of the same working set has replayed: then it is written again, or
 * E_UNWRITTEN. E_INDEX, E_BYTES, E_INPUT. */
FLASHRT_API flashrt_status flashrt_write_input(flashrt_session *session, uint32_t input, const void *data,
                                               uint64_t bytes);

/* Replay one stage and wait for it. E_UNWRITTEN, E_STALE, E_SHAPE, E_DEVICE; report may be null. */
FLASHRT_API flashrt_status flashrt_run_stage(flashrt_session *session, uint32_t stage, uint32_t flags,
                                             flashrt_report *report);

/* One decision: the transforms whose staged inputs have changed, then all stages as one graph.
 * E_UNWRITTEN, E_STALE, E_SHAPE, E_DEVICE, E_NUMERICS; report may be null. */
FLASHRT_API flashrt_status flashrt_decide(flashrt_session *session, flashrt_report *report);

/* The last stage alone, on the retained results of those before it. Errors as flashrt_decide. */
FLASHRT_API flashrt_status flashrt_act(flashrt_session *session, uint32_t flags, flashrt_report *report);

/* The output as the last replay of this session left it; exactly its bytes. E_STALE once an input that it
 * was made from has been written again: what was refused to flashrt_act is no result to act upon either.
 * E_INDEX, E_BYTES, E_NOT_MADE. */
FLASHRT_API flashrt_status flashrt_read_output(flashrt_session *session, uint32_t output, void *data,
                                               uint64_t bytes);

/* The same; with FLASHRT_ALLOW_STALE also behind newer inputs, for a host that writes the next ones first. */
FLASHRT_API flashrt_status flashrt_read_output_flags(flashrt_session *session, uint32_t output, uint32_t flags,
                                                     void *data, uint64_t bytes);

/* Save the retained state under a name of printable ASCII; replaces the session's own capsule of that
 * name. It may return before the device has copied; later work sees it. E_NOT_MADE, E_CAPSULE,
 * E_CAPSULE_FULL, E_DEVICE. */
FLASHRT_API flashrt_status flashrt_snapshot(flashrt_session *session, const char *name);

/* Resume from a capsule of this session. Its inputs count as unwritten then: act may follow once the
 * inputs of the last stage are written, a new context needs a new observation. What was stale when it
 * was saved is stale again, and so it is in a fork. E_CAPSULE, E_DEVICE. */
FLASHRT_API flashrt_status flashrt_restore(flashrt_session *session, const char *name);

/* A new session that continues from a capsule, or from the live state where capsule is null. `into` is
 * null for the same engine, else any session of the engine that shall have it, of the same plan. Call
 * flashrt_close when done. E_CAPSULE, E_SESSION, E_SESSION_LIMIT, E_FINGERPRINT, E_DEVICE. */
FLASHRT_API flashrt_status flashrt_fork(flashrt_session *session, const char *capsule, flashrt_session *into,
                                        const char *name, flashrt_session **out);

/* Free the slot of a capsule. E_CAPSULE. */
FLASHRT_API flashrt_status flashrt_drop(flashrt_session *session, const char *name);

/* End a session that flashrt_fork made; the handle is of no use afterwards. E_SESSION for one that
 * Python made, which Python takes back. */
FLASHRT_API flashrt_status flashrt_close(flashrt_session *session);

#ifdef __cplusplus
}
#endif

#endif
