// NIXL's backend NACRE: transfers between memory (DRAM, VRAM) and files of one Nacre filesystem, over
// libnacre.
//
// Parameters, all of which may be left out: "mount", a path on the filesystem (else that of the first file
// that is registered); "transport", as in nacre.toml(5); "verify", "false" for no look at checksums.
// Thread-safe, but for a transfer, which is one thread's at a time.
#pragma once

#include <backend/backend_engine.h>

#include <mutex>
#include <nacre/nacre.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace nacre::nixl {

nixl_b_params_t Parameters();
nixl_mem_list_t Segments();

class Engine : public nixlBackendEngine {
 public:
  explicit Engine(const nixlBackendInitParams* parameters);

  bool supportsRemote() const override { return false; }
  bool supportsLocal() const override { return true; }
  bool supportsNotif() const override { return false; }
  nixl_mem_list_t getSupportedMems() const override { return Segments(); }

  nixl_status_t registerMem(const nixlBlobDesc& place, const nixl_mem_t& type, nixlBackendMD*& out) override;
  nixl_status_t deregisterMem(nixlBackendMD* segment) override;
  nixl_status_t loadLocalMD(nixlBackendMD* input, nixlBackendMD*& output) override;
  nixl_status_t unloadMD(nixlBackendMD* input) override;
  nixl_status_t connect(const std::string& agent) override;
  nixl_status_t disconnect(const std::string& agent) override;

  nixl_status_t prepXfer(const nixl_xfer_op_t& operation, const nixl_meta_dlist_t& local,
                         const nixl_meta_dlist_t& remote, const std::string& agent, nixlBackendReqH*& handle,
                         const nixl_opt_b_args_t* options) const override;
  nixl_status_t postXfer(const nixl_xfer_op_t& operation, const nixl_meta_dlist_t& local,
                         const nixl_meta_dlist_t& remote, const std::string& agent, nixlBackendReqH*& handle,
                         const nixl_opt_b_args_t* options) const override;
  nixl_status_t checkXfer(nixlBackendReqH* handle) const override;
  nixl_status_t releaseReqH(nixlBackendReqH* handle) const override;

  nixl_status_t queryMem(const nixl_reg_dlist_t& files,
                         std::vector<nixl_query_resp_t>& answers) const override;

 private:
  Error Open(const std::string& path);
  nixl_status_t RegisterFile(const nixlBlobDesc& place, nixlBackendMD*& out);
  nixl_status_t RegisterMemory(const nixlBlobDesc& place, nixl_mem_t type, nixlBackendMD*& out);
  // Null: no filesystem is known yet.
  const Client* OpenClient() const;

  ClientOptions options_;
  mutable std::mutex mutex_;
  std::optional<Client> client_;  // set once
  std::set<uint64_t> numbers_;    // of files that were named by their path
};

}  // namespace nacre::nixl
