/* A host of the toy policy, compiled against the frozen header. Functions return 0, or the line that
 * found something else than it should. */
#include "flashrt_v1.h"

#include <pthread.h>
#include <string.h>

#define API __attribute__((visibility("default")))
#define EXPECT(condition) \
  if (!(condition)) return __LINE__
#define OK(call) EXPECT((call) == FLASHRT_OK)

static float noise[6] = {0.5f, -1.0f, 2.0f, 0.25f, 3.0f, -0.5f};

/* Everything that version 1 promises, once. Leaves the capsule "client" and takes it away again. */
API int client_run(flashrt_session *session) {
  uint8_t image[12];
  float first[6], again[6];
  uint32_t input, output, stage, index;
  flashrt_info info = {sizeof info};
  flashrt_input spec = {sizeof spec};
  flashrt_stage rules = {sizeof rules};
  flashrt_report report = {sizeof report};
  flashrt_slot slot = {sizeof slot};
  flashrt_session *branch = NULL;
  EXPECT(flashrt_abi_version() >= FLASHRT_ABI_VERSION);
  OK(flashrt_get_info(session, &info));
  EXPECT(info.struct_size == sizeof info && info.inputs == 3 && strcmp(info.policy, "toy") == 0);
  OK(flashrt_find(session, FLASHRT_KIND_INPUT, "image", &input));
  OK(flashrt_get_input(session, input, &spec));
  EXPECT(spec.bytes == sizeof image && spec.dtype == FLASHRT_U8 && spec.update == FLASHRT_UPDATE_SWAP);
  memset(image, 9, sizeof image);
  OK(flashrt_write_input(session, input, image, sizeof image));
  OK(flashrt_find(session, FLASHRT_KIND_INPUT, "noise", &input));
  OK(flashrt_write_input(session, input, noise, sizeof noise));
  OK(flashrt_decide(session, &report));
  EXPECT(report.struct_size == sizeof report && report.stages != 0 && report.wall_us > 0);
  OK(flashrt_find(session, FLASHRT_KIND_OUTPUT, "actions", &output));
  OK(flashrt_snapshot(session, "client"));
  OK(flashrt_act(session, 0, NULL));
  OK(flashrt_read_output(session, output, first, sizeof first));
  memset(image, 10, sizeof image);
  OK(flashrt_find(session, FLASHRT_KIND_INPUT, "image", &index));
  OK(flashrt_write_input(session, index, image, sizeof image));
  OK(flashrt_find(session, FLASHRT_KIND_STAGE, "context", &stage));
  OK(flashrt_get_stage(session, stage, &rules));
  EXPECT(rules.validity == FLASHRT_STALE && !rules.transform);
  EXPECT(flashrt_act(session, 0, NULL) == FLASHRT_E_STALE);
  EXPECT(strstr(flashrt_last_error(), "image") != NULL);
  OK(flashrt_run_stage(session, stage, 0, NULL));
  OK(flashrt_act(session, 0, NULL));
  OK(flashrt_read_output(session, output, again, sizeof again));
  EXPECT(memcmp(first, again, sizeof first) != 0);
  OK(flashrt_restore(session, "client"));
  EXPECT(flashrt_act(session, 0, NULL) == FLASHRT_E_UNWRITTEN);
  OK(flashrt_write_input(session, input, noise, sizeof noise));
  OK(flashrt_act(session, 0, NULL));
  OK(flashrt_read_output(session, output, again, sizeof again));
  EXPECT(memcmp(first, again, sizeof first) == 0);
  OK(flashrt_fork(session, "client", NULL, "branch", &branch));
  OK(flashrt_write_input(branch, input, noise, sizeof noise));
  OK(flashrt_act(branch, 0, NULL));
  OK(flashrt_read_output(branch, output, again, sizeof again));
  EXPECT(memcmp(first, again, sizeof first) == 0);
  OK(flashrt_close(branch));
  EXPECT(flashrt_act(branch, 0, NULL) == FLASHRT_E_CLOSED);
  OK(flashrt_find(session, FLASHRT_KIND_SLOT, "client", &index));
  OK(flashrt_get_slot(session, index, &slot));
  EXPECT(slot.full && slot.bytes > 0 && slot.bytes <= slot.capacity);
  OK(flashrt_drop(session, "client"));
  return 0;
}

/* The hot path alone, `rounds` times; "hot" is left behind. */
API int client_loop(flashrt_session *session, int rounds) {
  uint8_t image[12] = {0};
  int32_t tokens[4] = {97, 98, 0, 0};
  float actions[6];
  flashrt_report report = {sizeof report};
  for (int round = 0; round < rounds; ++round) {
    image[0] = (uint8_t)round;
    tokens[0] = 97 + round % 2;
    OK(flashrt_write_input(session, 0, image, sizeof image));
    OK(flashrt_write_input(session, 1, tokens, sizeof tokens));
    OK(flashrt_write_input(session, 2, noise, sizeof noise));
    OK(flashrt_decide(session, &report));
    OK(flashrt_read_output(session, 0, actions, sizeof actions));
    OK(flashrt_snapshot(session, "hot"));
    OK(flashrt_write_input(session, 0, image, sizeof image));
    EXPECT(flashrt_act(session, 0, NULL) == FLASHRT_E_STALE); /* a refusal allocates nothing either */
    OK(flashrt_restore(session, "hot"));
    OK(flashrt_write_input(session, 2, noise, sizeof noise));
    OK(flashrt_act(session, 0, &report));
  }
  return 0;
}

typedef struct {
  flashrt_session *session;
  int rounds, line;
} job;

static void *work(void *memory) {
  job *own = memory;
  own->line = client_loop(own->session, own->rounds);
  return NULL;
}

/* The same in a thread of its own, which the caller waits for. */
API int client_thread(flashrt_session *session, int rounds) {
  pthread_t thread;
  job own = {session, rounds, -1};
  if (pthread_create(&thread, NULL, work, &own) != 0) return __LINE__;
  pthread_join(thread, NULL);
  return own.line;
}
