"""A synthetic workcell that moves: a table, a coloured block, an arm, and cameras that see them.

Everything follows from the seed and the time: the joint angles are sums of slow sines, the arm is
their forward kinematics, the block runs along a closed curve on the table, one camera stands beside
the table and one rides on the hand. Rendering is plain numpy (a plane texture sampled through the
camera, convex polygons in painter's order), fast enough to write a recording at camera rate.
It never touches ROS or a file; ``recording.py`` turns it into a bag.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Image = NDArray[np.uint8]

ARM_JOINTS = 7
# Segment lengths along the local z axis after each joint, metres: shoulder height, upper arm,
# forearm, hand; the joints between them only turn.
_LINKS = (0.33, 0.0, 0.32, 0.0, 0.38, 0.0, 0.18)
_AXES = "zyzyzyz"
_HOME = np.array([0.0, 0.55, 0.0, 1.42, 0.0, 1.17, 0.0])
_SWING = np.array([0.38, 0.16, 0.22, 0.18, 0.30, 0.20, 0.60])

_TABLE = (0.02, 1.02, -0.58, 0.58)  # x0, x1, y0, y1 in metres, top at z = 0
_TEXTURE = 640  # texels along each side of the table
_BLOCK = 0.075  # edge of the block, metres
_LIGHT = np.array([0.35, -0.45, 0.82])
_FLOOR = np.array([58, 62, 70], np.uint8)

_ORANGE = np.array([233.0, 116.0, 38.0])
_STEEL = np.array([208.0, 213.0, 221.0])
_JOINT = np.array([56.0, 92.0, 158.0])


@dataclass(frozen=True)
class Camera:
    """A pinhole: ``rotation`` [3, 3] maps world to camera axes (x right, y down, z forward)."""

    position: Array
    rotation: Array
    focal: float
    width: int
    height: int

    def project(self, points: Array) -> tuple[Array, Array]:
        """World points [N, 3] -> pixels [N, 2] and depths [N] in metres."""
        local = (points - self.position) @ self.rotation.T
        depth = local[:, 2]
        safe = np.maximum(depth, 1e-3)
        centre = np.array([self.width / 2, self.height / 2])
        return local[:, :2] / safe[:, None] * self.focal + centre, depth


def look_at(eye: Array, target: Array, focal: float, size: tuple[int, int]) -> Camera:
    """Camera at ``eye`` that looks at ``target`` with the horizon level."""
    forward = (target - eye) / np.linalg.norm(target - eye)
    right = np.cross(forward, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right)
    return Camera(eye, np.stack([right, np.cross(forward, right), forward]), focal, *size)


class Scene:
    """The workcell of one seed, seen by ``cameras`` views of ``width`` x ``height`` pixels.

    Views past the second repeat the two kinds (beside the table, on the hand) from other sides.
    """

    def __init__(self, seed: int = 0, width: int = 640, height: int = 480) -> None:
        rng = np.random.default_rng(seed)
        self.width, self.height = width, height
        self._phase = rng.uniform(0, 2 * np.pi, (3, ARM_JOINTS))
        self._rate = rng.uniform(0.08, 0.16, ARM_JOINTS)  # Hz
        self._block_phase = rng.uniform(0, 2 * np.pi, 3)
        self._texture = _table_texture(rng)
        self._static: dict[int, tuple[Camera, Image]] = {}
        rows, cols = np.indices((height, width), dtype=np.float32)
        self._pixels = np.stack([cols - width / 2 + 0.5, rows - height / 2 + 0.5])  # [2, H, W]

    def joints(self, t: float, count: int = ARM_JOINTS) -> tuple[Array, Array]:
        """Positions [count] in rad and velocities [count] in rad/s at time ``t`` in seconds."""
        index = np.arange(count) % ARM_JOINTS
        omega = 2 * np.pi * self._rate[index] * (1 + 0.07 * (np.arange(count) // ARM_JOINTS))
        slow, fast = self._phase[0][index], self._phase[1][index]
        swing = _SWING[index]
        position = _HOME[index] + swing * (
            0.8 * np.sin(omega * t + slow) + 0.2 * np.sin(2.3 * omega * t + fast)
        )
        velocity = (swing * omega) * (
            0.8 * np.cos(omega * t + slow) + 0.46 * np.cos(2.3 * omega * t + fast)
        )
        return position, velocity

    def block(self, t: float) -> tuple[Array, float]:
        """Centre [3] in metres and yaw in rad of the block at time ``t``."""
        a, b, c = self._block_phase
        centre = np.array(
            [
                0.56 + 0.17 * np.sin(0.55 * t + a),
                0.24 * np.sin(0.8 * t + b),
                _BLOCK / 2,
            ]
        )
        return centre, 0.35 * t + c

    def camera(self, index: int, t: float) -> Camera:
        """The camera of view ``index``: even ones stand beside the table, odd ones ride a hand."""
        focal = 0.95 * self.width
        size = (self.width, self.height)
        if index % 2 == 0:
            side = -1.0 if index % 4 == 0 else 1.0
            eye = np.array([1.35, side * 0.95, 0.95 + 0.1 * (index // 4)])
            return look_at(eye, np.array([0.42, 0.0, 0.17]), focal, size)
        frames = _forward(self.joints(t)[0])
        wrist, rotation = frames[-2][0], frames[-1][1]
        offset = 0.055 if index % 4 == 1 else -0.055
        # The camera sits beside the hand and looks along it; its x axis is the hand's x axis.
        axes = np.stack([rotation[:, 1], -rotation[:, 0], rotation[:, 2]])
        return Camera(wrist + rotation[:, 0] * offset, axes, 0.75 * self.width, *size)

    def render(self, index: int, t: float) -> Image:
        """View ``index`` at time ``t``: [height, width, 3] uint8 RGB."""
        if index % 2 == 0:
            if index not in self._static:
                camera = self.camera(index, 0.0)
                self._static[index] = (camera, self._background(camera))
            camera, background = self._static[index]
            image = background.copy()
        else:
            camera = self.camera(index, t)
            image = self._background(camera)
        frames = _forward(self.joints(t)[0])
        self._draw_shadow(image, camera, t)
        self._draw_block(image, camera, t)
        if index % 2 == 0:
            _draw_arm(image, camera, frames)
        else:
            _draw_gripper(image, camera, frames[-1])
        return image

    def _background(self, camera: Camera) -> Image:
        """Table and floor as this camera sees them: every pixel's ray meets the plane z = 0."""
        x0, x1, y0, y1 = _TABLE
        axes = camera.rotation.astype(np.float32)
        right, down, forward = axes
        u, v = self._pixels
        u, v = u / np.float32(camera.focal), v / np.float32(camera.focal)
        height = np.float32(camera.position[2])
        slope = u * right[2] + v * down[2] + forward[2]  # z of the ray, negative looks down
        scale = height / -np.minimum(slope, np.float32(-1e-4))
        x = (u * right[0] + v * down[0] + forward[0]) * scale + np.float32(camera.position[0])
        y = (u * right[1] + v * down[1] + forward[1]) * scale + np.float32(camera.position[1])
        column = (x - np.float32(x0)) * np.float32(_TEXTURE / (x1 - x0))
        row = (y - np.float32(y0)) * np.float32(_TEXTURE / (y1 - y0))
        # One texel of border holds the floor's colour, so that clipping paints what lies outside.
        column = np.clip(column + 1, 0, _TEXTURE + 1).astype(np.int32)
        row = np.clip(row + 1, 0, _TEXTURE + 1).astype(np.int32)
        texels = self._texture.take(row * (_TEXTURE + 2) + column)
        return np.ascontiguousarray(texels.view(np.uint8).reshape(*row.shape, 4)[:, :, :3])

    def _draw_block(self, image: Image, camera: Camera, t: float) -> None:
        centre, yaw = self.block(t)
        corners = _cube(centre, yaw)
        pixels, depth = camera.project(corners)
        if depth.min() < 0.02:
            return
        for face in _visible_faces(corners, camera.position):
            _fill(image, pixels[list(face.corners)], _shade(_ORANGE, face.normal))

    def _draw_shadow(self, image: Image, camera: Camera, t: float) -> None:
        centre, yaw = self.block(t)
        corners = _cube(centre, yaw)
        ground = corners - _LIGHT * (corners[:, 2] / _LIGHT[2])[:, None]
        pixels, depth = camera.project(ground)
        if depth.min() > 0.02:
            _darken(image, _hull(pixels), 0.55)


@dataclass(frozen=True)
class _Face:
    corners: tuple[int, int, int, int]
    normal: Array


_CUBE_FACES = ((0, 1, 3, 2), (4, 5, 7, 6), (0, 1, 5, 4), (2, 3, 7, 6), (0, 2, 6, 4), (1, 3, 7, 5))


def _cube(centre: Array, yaw: float) -> Array:
    """Corners [8, 3] of the block; bit 2 of the index is x, bit 1 is y, bit 0 is z."""
    signs = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], float)
    return signs * (_BLOCK / 2) @ _rotation("z", yaw).T + centre


def _visible_faces(corners: Array, eye: Array) -> list[_Face]:
    middle = corners.mean(0)
    faces = []
    for index in _CUBE_FACES:
        centre = corners[list(index)].mean(0)
        normal = (centre - middle) / np.linalg.norm(centre - middle)
        if normal @ (eye - centre) > 0:
            faces.append(_Face(index, normal))
    return faces


def _rotation(axis: str, angle: float) -> Array:
    c, s = np.cos(angle), np.sin(angle)
    if axis == "z":
        return np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])
    return np.array([[c, 0.0, s], [0.0, 1.0, 0.0], [-s, 0.0, c]])


def _forward(angles: Array) -> list[tuple[Array, Array]]:
    """Forward kinematics: (origin [3], rotation [3, 3]) of the base and after each joint's link."""
    origin, rotation = np.zeros(3), np.eye(3)
    frames = [(origin, rotation)]
    for axis, length, angle in zip(_AXES, _LINKS, angles, strict=True):
        rotation = rotation @ _rotation(axis, angle)
        origin = origin + rotation[:, 2] * length
        frames.append((origin, rotation))
    return frames


def _draw_arm(image: Image, camera: Camera, frames: list[tuple[Array, Array]]) -> None:
    """Links as tapered bars with discs at the joints, the farthest first."""
    points = [frames[0][0], frames[1][0], frames[3][0], frames[5][0], frames[7][0]]
    radii = (0.075, 0.062, 0.052, 0.044, 0.03)
    pixels, depth = camera.project(np.array(points))
    sizes = [camera.focal * radius / max(d, 0.05) for radius, d in zip(radii, depth, strict=True)]
    base, _ = camera.project(np.array([[0.0, 0.0, 0.0]]))
    _disc(image, base[0], 1.3 * sizes[0], _shade(_JOINT, np.array([0.0, 0.0, 1.0])))
    order = sorted(range(4), key=lambda i: -(depth[i] + depth[i + 1]))
    for i in order:
        start, end = pixels[i], pixels[i + 1]
        along = (end - start) / max(float(np.linalg.norm(end - start)), 1e-6)
        across = np.array([-along[1], along[0]])
        for width, light in ((1.0, 0.72), (0.62, 0.9), (0.25, 1.0)):
            bar = np.stack(
                [
                    start + across * sizes[i] * width,
                    end + across * sizes[i + 1] * width,
                    end - across * sizes[i + 1] * width,
                    start - across * sizes[i] * width,
                ]
            )
            _fill(image, bar, (_STEEL * light).astype(np.uint8))
    for i in sorted(range(5), key=lambda i: -depth[i]):
        _disc(image, pixels[i], sizes[i] * 1.05, (_JOINT * 0.8).astype(np.uint8))
        _disc(image, pixels[i] - 0.2 * sizes[i], sizes[i] * 0.62, (_JOINT * 1.25).astype(np.uint8))


def _draw_gripper(image: Image, camera: Camera, hand: tuple[Array, Array]) -> None:
    """Two fingers that the camera on the hand sees at the edge of its view."""
    origin, rotation = hand
    for side in (-1.0, 1.0):
        root = origin + rotation @ np.array([0.0, side * 0.05, -0.06])
        tip = origin + rotation @ np.array([0.0, side * 0.035, 0.03])
        half = rotation[:, 0] * 0.012
        pixels, depth = camera.project(np.stack([root - half, root + half, tip + half, tip - half]))
        if depth.min() > 0.02:
            _fill(image, pixels, (_STEEL * 0.6).astype(np.uint8))
            inner = pixels * 0.8 + pixels.mean(0) * 0.2
            _fill(image, inner, (_STEEL * 0.85).astype(np.uint8))


def _shade(colour: Array, normal: Array) -> Image:
    light = 0.45 + 0.55 * max(0.0, float(normal @ _LIGHT))
    return np.clip(colour * light, 0, 255).astype(np.uint8)


def _window(image: Image, low: Array, high: Array) -> tuple[int, int, int, int] | None:
    """Integer box of [low, high] clipped to the image, or None when nothing is left of it."""
    height, width = image.shape[:2]
    x0, y0 = max(int(np.floor(low[0])), 0), max(int(np.floor(low[1])), 0)
    x1, y1 = min(int(np.ceil(high[0])) + 1, width), min(int(np.ceil(high[1])) + 1, height)
    return (x0, y0, x1, y1) if x1 > x0 and y1 > y0 else None


def _polygon_mask(image: Image, polygon: Array) -> tuple[Image, NDArray[np.bool_]] | None:
    """The part of the image under a convex polygon [N, 2] (view) and its mask."""
    box = _window(image, polygon.min(0), polygon.max(0))
    if box is None:
        return None
    x0, y0, x1, y1 = box
    xs = np.arange(x0, x1, dtype=np.float32)[None, :]
    ys = np.arange(y0, y1, dtype=np.float32)[:, None]
    edges = np.roll(polygon, -1, 0) - polygon
    following = np.roll(edges, -1, 0)
    area = (edges[:, 0] * following[:, 1] - edges[:, 1] * following[:, 0]).sum()
    sign = 1.0 if area >= 0 else -1.0
    mask = np.ones((y1 - y0, x1 - x0), bool)
    for (px, py), (ex, ey) in zip(polygon, edges * sign, strict=True):
        mask &= np.float32(ex) * (ys - np.float32(py)) >= np.float32(ey) * (xs - np.float32(px))
    return image[y0:y1, x0:x1], mask


def _fill(image: Image, polygon: Array, colour: Image) -> None:
    found = _polygon_mask(image, polygon)
    if found is not None:
        found[0][found[1]] = colour


def _darken(image: Image, polygon: Array, factor: float) -> None:
    found = _polygon_mask(image, polygon)
    if found is not None:
        part, mask = found
        part[mask] = (part[mask] * np.float32(factor)).astype(np.uint8)


def _disc(image: Image, centre: Array, radius: float, colour: Image) -> None:
    box = _window(image, centre - radius, centre + radius)
    if box is None:
        return
    x0, y0, x1, y1 = box
    xs = np.arange(x0, x1, dtype=np.float32)[None, :] - np.float32(centre[0])
    ys = np.arange(y0, y1, dtype=np.float32)[:, None] - np.float32(centre[1])
    image[y0:y1, x0:x1][xs * xs + ys * ys <= np.float32(radius * radius)] = colour


def _hull(points: Array) -> Array:
    """Convex hull [M, 2] of points [N, 2], in order (Andrew's monotone chain)."""
    ordered = points[np.lexsort((points[:, 1], points[:, 0]))]

    def half(sequence: Array) -> list[Array]:
        chain: list[Array] = []
        for point in sequence:
            while len(chain) > 1:
                a, b = chain[-1] - chain[-2], point - chain[-2]
                if a[0] * b[1] - a[1] * b[0] > 0:
                    break
                chain.pop()
            chain.append(point)
        return chain[:-1]

    return np.array(half(ordered) + half(ordered[::-1]))


def _table_texture(rng: np.random.Generator) -> NDArray[np.uint32]:
    """Planks with a grain, a printed grid and a target ring, with the floor on the rim.

    Returns [(T + 2)^2] uint32, RGB and a spare byte: one texel is fetched in one load.
    """
    size = _TEXTURE
    rows, cols = np.indices((size, size), dtype=np.float32)
    plank = (rows // (size / 7)).astype(int)
    tint = rng.uniform(0.9, 1.06, 8).astype(np.float32)[plank]
    grain = np.sin(cols * 0.035 + rng.uniform(0, 6, 8).astype(np.float32)[plank] * 9 + rows * 0.6)
    value = tint * (1 + 0.035 * grain)
    texture = value[:, :, None] * np.array([178.0, 142.0, 104.0], np.float32)
    texture[(rows % (size / 7)) < 2] *= 0.7
    cell = size / 8
    texture[((rows % cell) < 2) | ((cols % cell) < 2)] *= 0.88
    radius = np.hypot(rows - size * 0.5, cols - size * 0.72)
    texture[(radius > 62) & (radius < 74)] = (46, 132, 120)
    texture[radius < 12] = (46, 132, 120)
    framed = np.zeros((size + 2, size + 2, 4), np.uint8)
    framed[:, :, :3] = _FLOOR
    framed[1:-1, 1:-1, :3] = np.clip(texture, 0, 255)
    return framed.view(np.uint32).reshape(-1)
