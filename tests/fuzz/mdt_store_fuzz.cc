// A damaged MDT: records changed, added and removed under a server. It starts or says why it cannot, serves
// or answers with errors; the checker finds its way through it, and after a repair there is nothing more to
// repair.
#include <sys/stat.h>

#include <cstdlib>

#include "rpc/convert.h"
#include "server/metadata/check.h"
#include "server/metadata/keys.h"
#include "tests/common/await.h"
#include "tests/fuzz/message_filler.h"
#include "tests/fuzz/simulated_mds.h"
#include "tests/fuzz/store_damage.h"

namespace nacre::fuzz {
namespace {

constexpr int kMaxChanges = 12;

class FuzzedMdt : SimulatedMds {
 public:
  // A tree to damage: two directories, a file in each, a second link, an orphan, a symlink, an xattr.
  FuzzedMdt() {
    if (!Start()) std::abort();
    RegisterOst();
    Connect();
    const Fid first = Make(kRootFid, "a", S_IFDIR | 0755);
    const Fid second = Make(first, "b", S_IFDIR | 0700);
    const Fid file = Make(first, "f", S_IFREG | 0644);
    Make(second, "l", S_IFLNK | 0777);
    proto::MetadataRequest link;
    *link.mutable_link()->mutable_fid() = ToProto(file);
    *link.mutable_link()->mutable_parent() = ToProto(second);
    link.mutable_link()->set_name("g");
    Ask(std::move(link));
    proto::MetadataRequest xattr;
    *xattr.mutable_set_xattr()->mutable_fid() = ToProto(file);
    xattr.mutable_set_xattr()->set_name("user.x");
    xattr.mutable_set_xattr()->set_value("value");
    Ask(std::move(xattr));
    proto::MetadataRequest create;
    *create.mutable_create()->mutable_parent() = ToProto(kRootFid);
    create.mutable_create()->set_name("o");
    create.mutable_create()->set_mode(S_IFREG | 0600);
    Ask(std::move(create));
    Crash();
  }

  void Damage(FuzzedDataProvider& input) {
    auto key_beginning = [](FuzzedDataProvider& input) {
      static constexpr uint8_t kTables[] = {0x01, 0x02, 0x03, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16,
                                            0x17, 0x18, 0x19, 0x20, 0x21, 0x22, 0x23, 0x24, 0x40};
      std::string key(1, static_cast<char>(input.PickValueInArray(kTables)));
      PutFid(&key, {0, 1, 0});
      return key;
    };
    DamageStore(input, store, key_beginning, 32);
  }

  void Serve() {
    if (!Start()) return;
    Connect();
    proto::MetadataRequest list;
    *list.mutable_readdir()->mutable_fid() = ToProto(kRootFid);
    list.mutable_readdir()->set_plus(true);
    Ask(std::move(list));
    for (const char* name : {"a", "o"}) {
      proto::MetadataRequest unlink;
      *unlink.mutable_unlink()->mutable_parent() = ToProto(kRootFid);
      unlink.mutable_unlink()->set_name(name);
      Ask(std::move(unlink));
    }
    world.RunFor(5s);
    Crash();
  }

  void Check() {
    if (!nacre::Await(mds::CheckMdt(store, false)).ok()) return;
    if (!nacre::Await(mds::CheckMdt(store, true)).ok()) std::abort();
    auto again = nacre::Await(mds::CheckMdt(store, true));
    if (!again.ok() || again->repaired != 0) std::abort();
  }

 private:
  Fid Make(Fid parent, const char* name, uint32_t mode) {
    proto::MetadataRequest request;
    proto::Mknod* mknod = request.mutable_mknod();
    *mknod->mutable_parent() = ToProto(parent);
    mknod->set_name(name);
    mknod->set_mode(mode);
    if (S_ISLNK(mode)) mknod->set_target("a");
    auto reply = Ask(std::move(request));
    if (!reply.has_value() || reply->status().error() != 0) std::abort();
    return FromProto(reply->entry().attr().fid());
  }
};

}  // namespace
}  // namespace nacre::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider input(data, size);
  nacre::fuzz::FuzzedMdt mdt;
  for (int i = 0; i < nacre::fuzz::kMaxChanges && input.remaining_bytes() > 0; ++i) mdt.Damage(input);
  mdt.Serve();
  mdt.Check();
  return 0;
}
