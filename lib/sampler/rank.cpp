// SPDX-License-Identifier: Apache-2.0
// Reads the rank from the environment variables of launchers.
#include "sampler/rank.hpp"

#include <charconv>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string_view>

namespace feedlane::sampler {
namespace {

struct Variables {
  const char* source;
  const char* rank;
  const char* world;  // nullptr: the launcher sets no such variable
};

constexpr Variables torchrun = {"torchrun", "RANK", "WORLD_SIZE"};
constexpr Variables slurm = {"slurm", "SLURM_PROCID", "SLURM_NTASKS"};
constexpr Variables pmix = {"pmix", "PMIX_RANK", nullptr};
// Flux and MPI launchers come before Slurm, which often starts them.
constexpr Variables launchers[] = {{"feedlane", "FEEDLANE_RANK", "FEEDLANE_WORLD_SIZE"},
                                   torchrun,
                                   {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                   {"mvapich", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},
                                   {"mvapich", "MVP_COMM_WORLD_RANK", "MVP_COMM_WORLD_SIZE"},
                                   {"pmi", "PMI_RANK", "PMI_SIZE"},
                                   {"flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE"},
                                   slurm,
                                   {"pals", "PALS_RANKID", nullptr},
                                   pmix};

// A decimal number without sign, up to INT32_MAX.
std::optional<std::int32_t> number(std::string_view text) {
  std::int32_t value = 0;
  if (text.empty() || text[0] == '-') return {};
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc{} || end != text.data() + text.size()) return {};
  return value;
}

// Whether Slurm started this process as a task of a step. An allocation's shell and a batch script have the
// allocation's variables but are single processes. Slurm numbers their steps from 0xfffffff0 on. A shell under srun is
// recognised by its job's name, as in PyTorch Lightning.
bool is_slurm_task(const Environment& environment) {
  constexpr std::uint32_t first_special_step = 0xfffffff0;
  const char* const step = environment("SLURM_STEP_ID");
  if (step == nullptr) return false;
  std::uint32_t id = 0;
  const char* const end = step + std::strlen(step);
  const auto parsed = std::from_chars(step, end, id);
  if (parsed.ec != std::errc{} || parsed.ptr != end || id >= first_special_step) return false;
  const char* const job = environment("SLURM_JOB_NAME");
  return job == nullptr || (std::strcmp(job, "interactive") != 0 && std::strcmp(job, "bash") != 0);
}

// Whether this is a Slurm shell, which has PMIx variables too.
bool is_shell_of_slurm(const Environment& environment) {
  const char* const space = environment("PMIX_NAMESPACE");
  return space != nullptr && std::strncmp(space, "slurm.", 6) == 0 && !is_slurm_task(environment);
}

bool is_there(const Environment& environment, const Variables& v) {
  if (v.source == slurm.source && !is_slurm_task(environment)) return false;
  if (v.source == pmix.source && is_shell_of_slurm(environment)) return false;
  return environment(v.rank) != nullptr || (v.world != nullptr && environment(v.world) != nullptr);
}

Status read_number(const Environment& environment, const char* name, const char* other, std::int32_t& value,
                   Error& error) {
  const char* const text = environment(name);
  if (text == nullptr)
    return error.refuse(FEEDLANE_E_ARGUMENT, name, 0, 1, "{} is set, but {} is not: set both or neither", other, name);
  const std::optional<std::int32_t> found = number(text);
  if (!found)
    return error.refuse(FEEDLANE_E_ARGUMENT, name, 0, 1, "{} is '{}': must be a number between 0 and {}", name,
                        first(40, text), INT32_MAX);
  value = *found;
  return FEEDLANE_OK;
}

Status read(const Environment& environment, const Variables& v, RankSource& out, Error& error) {
  if (v.world == nullptr)
    return error.refuse(FEEDLANE_E_ARGUMENT, "FEEDLANE_WORLD_SIZE", 0, 1,
                        "{} is set, but no variable gives the number of ranks: set FEEDLANE_RANK and "
                        "FEEDLANE_WORLD_SIZE, or pass both numbers to the sampler",
                        v.rank);
  Status s = read_number(environment, v.rank, v.world, out.rank, error);
  if (s == FEEDLANE_OK) s = read_number(environment, v.world, v.rank, out.world, error);
  if (s != FEEDLANE_OK) return s;
  if (out.world < 1)
    return error.refuse(FEEDLANE_E_ARGUMENT, v.world, out.world, 1, "{} is 0: must be at least 1", v.world);
  if (out.rank >= out.world)
    return error.refuse(FEEDLANE_E_ARGUMENT, v.rank, out.rank, out.world, "{} is {}: must be less than {}, {}", v.rank,
                        out.rank, v.world, out.world);
  out.source = v.source;
  return FEEDLANE_OK;
}

bool agrees(const Environment& environment, const char* name, std::int32_t used) {
  const char* const text = environment(name);
  return text == nullptr || number(text) == used;
}

// Whether the other launcher started one torchrun per node, and torchrun started this process. Then the two numberings
// of ranks may differ.
bool has_started_torchrun(const Environment& environment, const Variables& v, const RankSource& out) {
  if (out.source != torchrun.source) return false;
  const auto read = [&](const char* name) {
    const char* const text = name == nullptr ? nullptr : environment(name);
    return text == nullptr ? std::nullopt : number(text);
  };
  const std::optional<std::int32_t> each = read("LOCAL_WORLD_SIZE");
  const std::optional<std::int32_t> rank = read(v.rank);
  if (!each || *each < 1 || out.world % *each != 0 || !rank || *rank >= out.world / *each) return false;
  return v.world == nullptr || read(v.world) == out.world / *each;
}

// Writes a warning if another launcher's rank or world differs. It may set only one of the two.
void compare(const Environment& environment, const Variables& v, RankSource& out) {
  if (out.warning[0] != '\0') return;
  if (agrees(environment, v.rank, out.rank) && (v.world == nullptr || agrees(environment, v.world, out.world))) return;
  if (has_started_torchrun(environment, v, out)) return;
  if (v.world == nullptr) {
    (void)format_to(out.warning, "using rank {} of {} from {}, but {} is {}", out.rank, out.world, out.source, v.rank,
                    first(40, environment(v.rank)));
    return;
  }
  const auto text = [&](const char* name) { return environment(name) == nullptr ? "not set" : environment(name); };
  (void)format_to(out.warning, "using rank {} of {} from {}, but {} is {} and {} is {}", out.rank, out.world,
                  out.source, v.rank, first(40, text(v.rank)), v.world, first(40, text(v.world)));
}

}  // namespace

Status detect_rank(const Environment& environment, RankSource& out, Error& error) {
  out = {};
  bool found = false;
  for (const Variables& v : launchers) {
    if (!is_there(environment, v)) continue;
    if (found) {
      compare(environment, v, out);
    } else {
      const Status s = read(environment, v, out, error);
      if (s != FEEDLANE_OK) return s;
      found = true;
    }
  }
  return FEEDLANE_OK;
}

}  // namespace feedlane::sampler
