#pragma once

#include "cuda_runtime.h"

struct CUtensorMap {
  emulator::TileMap tiles;
  unsigned char rest[128 - sizeof(emulator::TileMap)];
};
