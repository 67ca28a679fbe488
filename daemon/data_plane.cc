#include "daemon/data_plane.h"

#include "transport/select/select_transport.h"
#include "transport/shm/shm_transport.h"

namespace nacre {

const std::vector<std::string>& TransportChoices() {
  static const std::vector<std::string> choices = {"auto", "shm", "tcp"};
  return choices;
}

StatusOr<std::unique_ptr<Transport>> MakeDataPlane(Executor executor, Clock& clock,
                                                   const std::string& choice) {
  SelectOptions options;
  if (choice == "auto" || choice == "shm") options.candidates.push_back(MakeShmCandidate(executor, clock));
  options.fall_back = choice == "auto" || choice == "tcp";
  if (choice == "tcp") options.reason = "transport = \"tcp\" is configured";
  return MakeSelectTransport(std::move(executor), clock, std::move(options));
}

}  // namespace nacre
