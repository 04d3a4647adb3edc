"""The table of the node's parameters: the only declaration of each, a row a parameter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flashrt_core.images import ROTATIONS_DEG
from flashrt_core.limits import MOST_SESSIONS, MOST_SLOTS
from flashrt_ros.execution.parameters import ROWS

from .param import Param

ACTION_KINDS = ("absolute", "delta", "velocity")
TRANSPORTS = RAW, COMPRESSED = ("raw", "compressed")
ON_MISSING = WAIT, HOLD, STOP = ("wait", "hold", "stop")
_GROUP = "camera.<key>."

TABLE: tuple[Param, ...] = (
    Param("policy", "string", "pi05", "Policy to run, by registry name."),
    Param("preset", "string", "tiny", "Sizes of the policy: a preset that it declares."),
    Param("checkpoint", "string", "random:0", "Weights: a checkpoint folder of openpi, NVIDIA or"
          " LeRobot (or its safetensors file alone), or `random:<seed>`. Here,"
          " and in `calibration`, `norm_stats` and `tokenizer`, `package://<package>/<path>` is a"
          " place in a ROS package's share."),
    Param("numerics", "string", "", "Whose roundings and conventions to follow (docs/numerics.md):"
          " a profile, single switches behind it; empty: as the checkpoint's origin says. Of"
          " `pi05` and `groot_n17`."),
    Param(
        "device", "string", "cpu", "Device that runs the stages; configure fails where it is"
        " missing.", choices=("cpu", "cuda"),
    ),
    Param("precision", "string", "fp32", "Precision plan of the stages: `fp32`, `bf16`, `fp8`, of"
          " `lingbot_va` also `int4` and `fp8_int4`, or a YAML file (docs/numerics.md)."),
    Param("calibration", "string", "", "Scales of an `fp8` plan, and how much the columns of"
          " 4-bit weights count: a file of `flashrt calibrate`; empty: where that command puts"
          " it."),
    Param("autostart", "bool", False, "Configure and activate when the process starts, also after"
          " a crash: the robot may move then. While a killed process still has the name, it is"
          " waited for."),
    Param("prompt", "string", "", "Instruction at configure; ~/set_prompt changes it. Empty: there"
          " is none, and no decision, until ~/set_prompt gives one."),
    Param(
        "rate_hz", "float", 10.0, "Decisions per second while active; 0 decides only on ~/decide.",
        unit="Hz", bounds=(0.0, 1000.0),
    ),
    Param(
        "seed", "int", 0, "Seed of the decision noise. Decision i of a session always draws the"
        " same noise for the same seed.", bounds=(0, 2**63 - 1),
    ),
    Param(
        "max_sessions", "int", 4, "Sessions that may exist at once, `main` included.",
        bounds=(1, MOST_SESSIONS),
    ),
    Param("working_sets", "int", 1, "Sets of buffers that sessions are spread over: those of one"
          " set make room for each other, with as many as `max_sessions` nobody does.",
          bounds=(1, MOST_SESSIONS)),
    Param("capsule_slots", "int", 4, "Capsules that fit at once; allocated at configure.",
          bounds=(0, MOST_SLOTS)),
    Param("horizon", "int", 0, "Actions in a chunk; 0 takes the policy's own. Of `lingbot_va` it"
          " follows from `frames` and `frame_rows` (`settings`).", bounds=(0, 4096)),
    Param("steps", "int", 0, "Flow-matching steps, of `lingbot_va` those of the video; 0 takes the"
          " policy's own.", bounds=(0, 1024)),
    Param(
        "prompt_buckets", "int[]", (), "Prompt lengths to capture, in tokens; empty takes the"
        " policy's own.", unit="tokens", bounds=(1, 65536),
    ),
    Param("threads", "int", 0, "CPU threads of the device; 0 leaves the library's default.",
          bounds=(0, 1024)),
    Param(
        "camera_bytes", "int", 0, "Room for a raw image: images of so many bytes or fewer go to the"
        " device as they come and are decoded and resized there, with the same result; larger ones"
        " the host resizes. 0: the host does it always, which is faster on `cpu`. Of `pi05`"
        " alone.",
        unit="bytes", bounds=(0, 1 << 28),
    ),
    Param("norm_stats", "string", "", "Normalisation statistics (openpi's norm_stats.json, of"
          " `groot_n17` NVIDIA's statistics.json); empty: those of the checkpoint."),
    Param("tokenizer", "string", "", "Text encoding (SentencePiece model, or tokenizer.json);"
          " empty: the one in the checkpoint's folder, for random weights a small one that ships."),
    Param("state_in_prompt", "bool", True, "The policy reads the robot's state from its prompt;"
          " false for a checkpoint that was trained without it. Of `pi05` alone."),
    Param("embodiment", "int", -1, "Slot of the network's projections that this robot has; -1: the"
          " checkpoint's only one, else the preset's. Of `groot_n17` alone.", bounds=(-1, 1023)),
    Param("settings", "string[]", (), "Further values of the policy's configuration, `name=value`"
          " each, over what checkpoint and preset say: `[action_steps=20, \"channels=0,2,4\"]`."
          " `flashrt inspect <policy> --json` lists them under `config`, those of a part with its"
          " name and `_` in front. What a robot of `lingbot_va` needs where its folder does not"
          " say: `channels`, `tee`, `frame_rows`, `action_steps`, `guidance`."),
    Param("cameras", "string[]", (), "Keys of the cameras; each names a group `camera.<key>`."),
    Param(_GROUP + "topic", "string", "", "Image topic, by the name of its raw images. Must be"
          " set."),
    Param(_GROUP + "transport", "string", "raw", "Which of image_transport's topics to take: the"
          " sensor_msgs/Image of `topic` itself, or the sensor_msgs/CompressedImage of"
          " `<topic>/compressed`.", choices=TRANSPORTS),
    Param(_GROUP + "slot", "string", "", "View of the policy that this camera feeds; empty: the"
          " view named like the key."),
    Param(_GROUP + "encoding", "string", "", "Encoding that must arrive, others are refused;"
          " empty takes every supported one. Also states the channel order of 8UC3 and 8UC4. For a"
          " compressed transport: `jpeg` or `png`."),
    Param(_GROUP + "rotation_deg", "int", 0, "Clockwise turn that makes the picture upright.",
          unit="deg", choices=ROTATIONS_DEG),
    Param(_GROUP + "max_age_s", "float", 0.5, "Oldest image that a decision may use.", unit="s",
          bounds=(0.001, 86400.0)),
    Param(_GROUP + "on_missing", "string", "wait", "While there is no image of that age: decide"
          " nothing (`wait`), go on with this view masked (`hold`, of `pi05` alone), or stop, which"
          " is an error and refuses ~/decide at once, until there is one again (`stop`).",
          choices=ON_MISSING),
    Param("joints.topic", "string", "joint_states", "sensor_msgs/JointState topic."),
    Param("joints.names", "string[]", (), "Joints in the order of the policy's state. Messages are"
          " reordered by name and further joints ignored; empty: the policy gets no joint state."),
    Param("joints.max_age_s", "float", 0.2, "Oldest joint state that a decision may use.",
          unit="s", bounds=(0.001, 86400.0)),
    Param("joints.on_missing", "string", "wait", "As for a camera, but for `hold`: no policy does"
          " without the state that it reads.", choices=(WAIT, STOP)),
    Param("sync.max_skew_s", "float", 0.0, "How far apart the stamps of cameras and joints may be"
          " in one decision: the newest images within it are taken, and the joint state nearest to"
          " them. 0: no limit, and the newest of each.", unit="s", bounds=(0.0, 86400.0)),
    Param("sync.fresh_images_s", "float", 0.0, "How long a decision due by `rate_hz` waits at"
          " most for a new image of every camera; somewhat more than a camera's period lets it"
          " begin with the newest. 0: it takes those that are there.",
          unit="s", bounds=(0.0, 10.0)),
    Param("action.names", "string[]", (), "Name of each action; empty takes `joints.names`."),
    Param("action.relative", "string[]", (), "Actions that the network gives relative to the"
          " observed state of the same index: it is added to them. Empty: as the checkpoint says;"
          " [none]: no action, whatever it says. Of `pi05` and `groot_n17`."),
    Param("action.kind", "string", "absolute", "What an action means: a set point, a change of the"
          " observed state, or a velocity.", choices=ACTION_KINDS),
    Param("action.dt_s", "float", 0.02, "Time from one action of a chunk to the next.", unit="s",
          bounds=(0.0001, 60.0)),
    *(Param(**row) for row in ROWS),
)  # fmt: skip


def expand(keys: Sequence[str]) -> dict[str, Param]:
    """The table with one camera group for each key, by full parameter name."""
    params: dict[str, Param] = {}
    for param in TABLE:
        if param.name.startswith(_GROUP):
            for key in keys:
                name = param.name.replace("<key>", key)
                params[name] = replace(param, name=name)
        else:
            params[param.name] = param
    return params
