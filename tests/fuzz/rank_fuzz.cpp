// SPDX-License-Identifier: Apache-2.0
// Whatever a launcher leaves in the environment: a rank of a world, both from one source, or the variable that is wrong.
#include <map>
#include <set>

#include "input.hpp"
#include "sampler/kinds.hpp"
#include "sampler/rank.hpp"

using namespace feedlane;

namespace {

constexpr const char* names[] = {"FEEDLANE_RANK", "FEEDLANE_WORLD_SIZE",  "RANK",          "WORLD_SIZE",
                                 "PMI_RANK",      "OMPI_COMM_WORLD_RANK", "SLURM_PROCID",  "SLURM_NTASKS",
                                 "PMI_SIZE",      "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_ID", "SLURM_JOB_NAME"};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input in(data, size);
  std::map<std::string, std::string> variables;
  const std::uint16_t present = in.u16();
  for (std::size_t i = 0; i < std::size(names); i++)
    if ((present >> i & 1) != 0) variables[names[i]] = in.text(80).c_str();
  const sampler::Environment environment = [&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };

  sampler::RankSource rank;
  Error error;
  const Status s = sampler::detect_rank(environment, rank, error);
  PROMISE(s == FEEDLANE_OK || s == FEEDLANE_E_ARGUMENT);
  if (s == FEEDLANE_OK) {
    PROMISE(rank.rank >= 0 && rank.world >= 1 && rank.rank < rank.world);
    const std::set<std::string> sources{"feedlane", "torchrun", "openmpi", "pmi", "slurm", "none"};
    PROMISE(sources.contains(rank.source));
    PROMISE(std::string(rank.source) != "none" || (rank.world == 1 && rank.warning[0] == '\0'));
    PROMISE(memchr(rank.warning, 0, sizeof rank.warning) != nullptr);
  } else {
    PROMISE(std::find(std::begin(names), std::end(names), std::string(error.argument)) != std::end(names));
    PROMISE(error.code == s && error.text[0] != '\0');
  }

  // A distributed sampler takes the same rank, or is refused for the same variable.
  feedlane_sampler_config config{};
  config.size = sizeof config;
  config.length = in.u8();
  config.no_shuffle = 1;
  std::unique_ptr<sampler::Sampler> sampler;
  PROMISE(sampler::make_distributed(config, nullptr, environment, sampler, error) == s);
  if (s != FEEDLANE_OK) return 0;
  PROMISE(std::string(sampler->rank_source()) == rank.source);
  PROMISE(sampler->place().first == rank.rank && sampler->place().stride == rank.world);
  std::int64_t index = -1;
  std::uint64_t got = 0;
  const Status first = sampler->next(&index, 1, got, error);
  PROMISE(first == (config.length == 0 ? FEEDLANE_END : FEEDLANE_OK));
  PROMISE(first == FEEDLANE_END || index == rank.rank % config.length);
  return 0;
}
