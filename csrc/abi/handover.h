/* What Python hands to the library, and takes back. Not for hosts: both halves ship together, and
 * FLASHRT_HANDOVER_VERSION with the sizes of all records says whether they fit.
 *
 * Python owns every record and keeps it until flashrt_handover_end. Sessions, slots and sets are worked
 * on in place: what the library leaves in them is what Python reads back, so there is one state and
 * never two that could differ.
 */
#ifndef FLASHRT_HANDOVER_H
#define FLASHRT_HANDOVER_H

#include "../include/flashrt.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FLASHRT_HANDOVER_VERSION 5u
enum { FLASHRT_COPY_PIECES = 8, FLASHRT_COPY_THREADS = 512 };
/* What of Python's host state the host has overwritten: the text of the prompt, what was seen last. */
enum { FLASHRT_FOREIGN_PROMPT = 1, FLASHRT_FOREIGN_OBSERVATION = 2 };
/* What the context was made with: what that host state says, what was seen last there, nothing that is known. */
enum { FLASHRT_CONTEXT_ORIGIN = 0, FLASHRT_CONTEXT_SEEN = 1, FLASHRT_CONTEXT_UNKNOWN = 2 };

/* What a session knows outside the buffers, and a capsule holds beside the bytes of its regions. */
typedef struct flashrt_held {
  uint32_t shape;
  uint32_t origin;  /* which of Python's host states it began as; FLASHRT_NONE: of none */
  uint32_t foreign; /* FLASHRT_FOREIGN_... */
  uint32_t context; /* FLASHRT_CONTEXT_... */
  uint64_t decisions;
  uint64_t made;   /* bit i: a result of stage i is retained */
  uint64_t staged; /* bit i: the value of input i behind that result is in the staged block */
  uint64_t staged_bytes[FLASHRT_MAX_INPUTS];
  uint64_t lineage[FLASHRT_MAX_STAGES][FLASHRT_MAX_INPUTS]; /* epochs; 0: not made from it */
  /* Of a capsule: the epoch of each input that had changed since something was made from it, else 0. A seat's
   * own epochs say the same. */
  uint64_t newer[FLASHRT_MAX_INPUTS];
} flashrt_held;

typedef struct flashrt_seat {
  uint32_t used;
  uint32_t forked; /* 1: made by flashrt_fork */
  uint32_t working_set;
  uint32_t parked; /* 1: its parking slot holds its state */
  uint64_t clock;
  uint64_t announced; /* bit i: input i has a new value that is not here yet, or is lost */
  uint64_t epochs[FLASHRT_MAX_INPUTS]; /* 0: absent */
  uint64_t parking;                    /* address of a slot */
  uint8_t *staged_block;               /* values of staged inputs, one behind the other */
  char name[FLASHRT_NAME_BYTES];
  flashrt_held held;
} flashrt_seat;

typedef struct flashrt_shelf {
  uint64_t address;
  uint8_t *staged_block;
  flashrt_slot slot;
  flashrt_held held;
} flashrt_shelf;

/* Whole numbers that an input may hold, both ends too. */
typedef struct flashrt_range {
  int64_t lowest, highest;
} flashrt_range;

typedef struct flashrt_program {
  flashrt_graph graph;
  const uint64_t *events; /* CUevent: one before the first stage and one behind each */
} flashrt_program;

/* `rows` runs of `width` bytes from one address to another; pitches in bytes. The kernel that copies takes
 * FLASHRT_COPY_PIECES of them as they are, and a count behind. */
typedef struct flashrt_piece {
  uint64_t to, from, width, rows, to_pitch, from_pitch;
} flashrt_piece;

/* What Python planned at configure: the regions of a shape on their way to a slot, or back. */
typedef struct flashrt_transfer {
  void *executable; /* CUgraphExec of all pieces; null where the kernel copies them, and on the CPU */
  const flashrt_piece *piece;
  uint32_t pieces;
  uint32_t reserved;
} flashrt_transfer;

/* Runs program `index` of the table; 0, or an error whose text (at most `room` bytes) goes to `error`. */
typedef int32_t (*flashrt_replay_fn)(uint32_t index, float *stage_ms, char *error, uint64_t room);

typedef struct flashrt_handover {
  uint32_t version;
  uint32_t device;
  uint32_t shapes, buffers, inputs, outputs, stages, regions, slots, seats, sets, programs; /* of a set */
  const char *policy;
  const char *digest;
  const char *identity;
  const flashrt_shape *shape;
  const flashrt_buffer *buffer; /* [sets][buffers] */
  const flashrt_input *input;
  const flashrt_range *range; /* [shapes][inputs] */
  const flashrt_output *output;
  const flashrt_stage *stage;
  const flashrt_region *region;
  const flashrt_program *program; /* [sets][programs] */
  const flashrt_transfer *transfer; /* [sets][seats, then slots][shapes][to the slot, from it] */
  flashrt_shelf *shelf;
  flashrt_seat *seat;
  uint32_t *resident; /* [sets]: seat whose state the buffers hold, or FLASHRT_NONE */
  uint64_t slot_bytes;
  uint64_t switches, moved_bytes;
  const char *driver; /* file name of the CUDA driver library */
  void *context;      /* CUcontext */
  void *stream;       /* CUstream */
  void *copier;       /* CUfunction of the kernel that copies pieces of the GPU's memory */
  uint32_t copy_blocks; /* of its launches */
  uint32_t reserved;
  flashrt_replay_fn replay; /* of the CPU device */
} flashrt_handover;

typedef struct flashrt_engine flashrt_engine;

/* Sizes of the records above, for a comparison with Python's; how many there are. */
FLASHRT_API uint32_t flashrt_handover_sizes(uint32_t *sizes, uint32_t room);
FLASHRT_API flashrt_status flashrt_handover_begin(flashrt_handover *plan, flashrt_engine **out);
FLASHRT_API flashrt_status flashrt_handover_open(flashrt_engine *engine, uint32_t seat, flashrt_session **out);
/* Retires every handle, and waits for calls that are under way and for the device. */
FLASHRT_API flashrt_status flashrt_handover_end(flashrt_engine *engine);

#ifdef __cplusplus
}
#endif

#endif
