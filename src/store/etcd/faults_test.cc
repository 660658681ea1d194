// What the store does when etcd, or the way to it, fails.
#include <gmock/gmock.h>
#include <httplib.h>

#include <atomic>
#include <future>
#include <thread>

#include "base/clock.h"
#include "os/testing/no_descriptors.h"
#include "os/testing/quiet_fork.h"
#include "store/etcd/http.h"
#include "store/etcd/session.h"
#include "store/testing/etcd_process.h"
#include "store/testing/etcd_proxy.h"

namespace tensorbus::store {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;

std::unique_ptr<Store> connect_to(const std::string& url, Deadline deadline = soon()) {
  return connect_etcd(StoreUrl::parse(url), {deadline, {}});
}

class EtcdFaults : public testing::Test {
 protected:
  EtcdProcess server;
};

// proves: K9, K5
TEST_F(EtcdFaults, WaitsWatchesAndLeasesSurviveAKilledEtcd) {
  const auto store = server.connect();
  const auto other = server.connect();
  const auto watch = store->watch("w/", false, soon());
  const auto lease = store->lease(seconds(1), {}, soon());
  set(*store, "w/leased", "1", lease.get());
  EXPECT_EQ(watch->next(soon()).key, "w/leased");
  auto waiting = std::async(std::launch::async, [&] { return store->wait(key("w/go"), soon()); });
  auto next = std::async(std::launch::async, [&] { return watch->next(soon()); });
  auto barrier = std::async(std::launch::async, [&] { store->barrier("b", 2, "0", soon()); });
  EXPECT_EQ(next.wait_for(milliseconds(300)), std::future_status::timeout);
  server.kill();
  auto writing = std::async(std::launch::async, [&] { set(*other, "w/go", "now"); });
  EXPECT_EQ(writing.wait_for(milliseconds(1500)), std::future_status::timeout);
  server.start();
  writing.get();
  EXPECT_EQ(waiting.get().value, "now");
  EXPECT_EQ(next.get().key, "w/go");
  other->barrier("b", 2, "1", soon());
  barrier.get();
  EXPECT_TRUE(lease->alive());
  EXPECT_EQ(get(*other, "w/leased"), "1");
}

// proves: K9
TEST_F(EtcdFaults, LeasedKeysArePublishedAgainWhenEtcdLostItsData) {
  const auto store = server.connect();
  const auto lease = store->lease(seconds(1), {}, soon());
  set(*store, "a/mine", "1", lease.get());
  store->add("a/mine", 1, soon());
  set(*store, "a/plain", "1");
  const auto watch = store->watch("a/", false, soon());
  auto waiting =
      std::async(std::launch::async, [&] { return store->wait(pattern("a/new*", 1), soon()); });
  EXPECT_EQ(waiting.wait_for(milliseconds(200)), std::future_status::timeout);
  server.restart_empty();
  const auto other = server.connect();
  EXPECT_EQ(other->wait(key("a/mine"), soon()).value, "2");
  EXPECT_TRUE(lease->alive());
  EXPECT_EQ(get(*other, "a/plain"), std::nullopt);
  set(*store, "a/mine", "3", lease.get());
  set(*other, "a/new", "");
  EXPECT_EQ(waiting.get().keys.front(), "a/new");
  // The watch tells the difference: what came back, and what did not.
  bool erased = false;
  for (StoreEvent event = watch->next(soon()); event.key != "a/new"; event = watch->next(soon())) {
    erased = erased || (event.kind == StoreEvent::Kind::erase && event.key == "a/plain");
  }
  EXPECT_TRUE(erased || watch->next(soon()).key == "a/plain");
}

// proves: K6
TEST_F(EtcdFaults, ALeaseThatLapsedWhileCutOffIsDead) {
  LossyProxy proxy(server.port());
  const auto store = connect_etcd(proxy.url(), {soon(), {}});
  const auto other = server.connect();
  const auto lease = store->lease(seconds(1), {}, soon());
  set(*store, "k", "", lease.get());
  const auto watch = other->watch("k", false, soon());
  proxy.refuse(true);
  EXPECT_EQ(watch->next(soon()).kind, StoreEvent::Kind::erase);
  proxy.refuse(false);
  const Status lapsed = status_of([&] { set(*store, "k", "", lease.get()); });
  EXPECT_EQ(lapsed.code, Code::failed);
  EXPECT_THAT(lapsed.message, HasSubstr("lapsed"));
  EXPECT_FALSE(lease->alive());
  EXPECT_EQ(status_of([&] { lease->refresh(soon()); }).code, Code::failed);
  EXPECT_FALSE(other->exists("k", soon()));
}

// proves: K5
TEST_F(EtcdFaults, AWatchThatMissedHistoryReportsTheDifference) {
  const auto store = server.connect();
  LossyProxy proxy(server.port());
  const auto behind = connect_etcd(proxy.url(), {soon(), {}});
  set(*store, "c/stays", "");
  set(*store, "c/goes", "");
  set(*store, "c/changes", "1");
  const auto watch = behind->watch("c/", false, soon());
  proxy.refuse(true);
  store->erase("c/goes", soon());
  set(*store, "c/changes", "2");
  set(*store, "c/changes", "3");
  set(*store, "c/comes", "");
  server.compact();
  proxy.refuse(false);
  const StoreEvent changed = watch->next(soon());
  EXPECT_EQ(changed.key + changed.value, "c/changes3");
  EXPECT_EQ(watch->next(soon()).key, "c/comes");
  const StoreEvent gone = watch->next(soon());
  EXPECT_EQ(gone.key, "c/goes");
  EXPECT_EQ(gone.kind, StoreEvent::Kind::erase);
  EXPECT_EQ(status_of([&] { watch->next(within(milliseconds(50))); }).code, Code::timeout);
}

// proves: K8
TEST_F(EtcdFaults, AStoppedEtcdCostsNoMoreThanTheDeadline) {
  const auto store = server.connect();
  set(*store, "k", "1");
  server.freeze();
  const TimePoint start = now();
  const Status status = status_of([&] {
    const std::string name = "k";
    store->get({&name, 1}, within(milliseconds(300)));
  });
  EXPECT_EQ(status.code, Code::timeout);
  EXPECT_THAT(status.message, HasSubstr("did not answer"));
  EXPECT_GE(now() - start, milliseconds(300));
  EXPECT_LT(now() - start, seconds(2));
  auto blocked =
      std::async(std::launch::async, [&] { return status_of([&] { get(*store, "k"); }); });
  EXPECT_EQ(blocked.wait_for(milliseconds(100)), std::future_status::timeout);
  store->close(false);
  EXPECT_EQ(blocked.get().code, Code::cancelled);
  server.thaw();
}

// proves: K1
TEST_F(EtcdFaults, LostAnswersApplyOnce) {
  const auto direct = server.connect();
  LossyProxy proxy(server.port());
  const auto store = connect_etcd(proxy.url(), {soon(), {}});
  set(*store, "k", "first");
  for (int lost = 1; lost <= 3; ++lost) {
    proxy.lose_answers(lost);
    EXPECT_EQ(store->add("sum", 1, soon()), lost);
  }
  EXPECT_EQ(get(*direct, "sum"), "3");
  proxy.lose_answers(2);
  const Swap swap = store->compare_and_set("k", "first", "second", soon());
  EXPECT_TRUE(swap.swapped);
  EXPECT_EQ(swap.value, "second");
  proxy.lose_answers(2);
  EXPECT_TRUE(store->erase("k", soon()));
  proxy.lose_answers(1);
  set(*store, "k", "third");
  EXPECT_EQ(proxy.lost(), 11);
  EXPECT_EQ(get(*direct, "k"), "third");
}

// proves: K1
TEST_F(EtcdFaults, ACopyThatArrivesLateIsNotApplied) {
  const auto direct = server.connect();
  LossyProxy proxy(server.port());
  const auto store = connect_etcd(proxy.url(), {soon(), {}});
  set(*store, "k", "1");
  proxy.hold_request();
  EXPECT_EQ(store->add("k", 1, soon()), 2);
  EXPECT_THAT(proxy.deliver_held(), HasSubstr("200 OK"));
  EXPECT_EQ(get(*direct, "k"), "2");
  set(*direct, "k", "x");
  EXPECT_FALSE(proxy.deliver_held().size() > 0);
  proxy.hold_request();
  set(*store, "k", "y");
  set(*direct, "k", "z");
  EXPECT_THAT(proxy.deliver_held(), HasSubstr("200 OK"));
  EXPECT_EQ(get(*direct, "k"), "z");

  // Refused at first, and a late copy would meet its condition.
  etcd::Gateway gateway(proxy.url());
  etcd::Session session(gateway);
  const etcd::Call call{soon()};
  session.write({}, call);
  etcd::Transaction transaction;
  transaction.compare.push_back(etcd::exists("later"));
  transaction.success.push_back(etcd::put("k", "late"));
  proxy.hold_request();
  EXPECT_FALSE(session.write(transaction, call).applied);
  set(*direct, "later", "");
  EXPECT_THAT(proxy.deliver_held(), HasSubstr("200 OK"));
  EXPECT_EQ(get(*direct, "k"), "z");
  EXPECT_TRUE(session.write(transaction, call).applied);
}

// proves: K1, K9
TEST_F(EtcdFaults, KillsInTheMiddleOfWritesLoseAndDoubleNothing) {
  constexpr int clients = 4;
  constexpr int adds = 60;
  std::atomic<int> done = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < clients; ++i) {
    threads.emplace_back([&] {
      const auto store = server.connect();
      for (int n = 0; n < adds; ++n) {
        store->add("sum", 1, soon());
        ++done;
        done.notify_one();
      }
    });
  }
  for (int kills = 1; kills <= 3; ++kills) {
    for (int seen = done; seen < kills * clients * adds / 5; seen = done) done.wait(seen);
    server.restart();
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(get(*server.connect(), "sum"), std::to_string(clients * adds));
}

TEST_F(EtcdFaults, AForkedChildIsToldToConnectAgain) {
  auto store = server.connect();
  set(*store, "k", "1");
  const auto watch = store->watch("k", false, soon());
  EXPECT_TRUE(os::holds_in_child([&] {
    const bool told = status_of([&] { get(*store, "k"); }).code == Code::failed;
    store.reset();
    return told;
  }));
  set(*store, "k", "2");
  EXPECT_EQ(watch->next(within(seconds(2))).value, "2");
}

// proves: K9
TEST_F(EtcdFaults, TheNextHostIsTriedWhenOneDoesNotAnswer) {
  const std::string live = "127.0.0.1:" + std::to_string(server.port());
  const auto store = connect_to("etcd://127.0.0.1:" + std::to_string(free_port()) + "," + live);
  set(*store, "k", "1");
  EXPECT_EQ(get(*store, "k"), "1");
  EXPECT_EQ(status_of([&] { store->wait(key("x"), within(milliseconds(200))); }).code,
            Code::timeout);
}

TEST_F(EtcdFaults, UsersNeedTheirPassword) {
  const auto before = server.connect();
  set(*before, "k", "1");
  const auto post = [&](const char* path, const etcd::Json& body) { server.post(path, body); };
  post("/v3/auth/role/add", {{"name", "root"}});
  post("/v3/auth/user/add", {{"name", "root"}, {"password", "s3cret"}});
  post("/v3/auth/user/grant", {{"user", "root"}, {"role", "root"}});
  post("/v3/auth/user/add", {{"name", "guest"}, {"password", "guest"}});
  // A password that is not needed does no harm.
  const std::string host = "@127.0.0.1:" + std::to_string(server.port());
  set(*connect_to("etcd://root:s3cret" + host), "k", "2");
  post("/v3/auth/enable", etcd::Json::object());

  const auto store = connect_to("etcd://root:s3cret" + host);
  set(*store, "k", "3");
  EXPECT_EQ(store->url().find("s3cret"), std::string::npos);
  const auto watch = store->watch("k", false, soon());
  const Status wrong = status_of([&] { connect_to("etcd://root:wrong" + host); });
  EXPECT_EQ(wrong.code, Code::denied);
  EXPECT_THAT(wrong.message, AllOf(HasSubstr("\"root\""), testing::Not(HasSubstr("wrong\""))));
  EXPECT_EQ(status_of([&] { server.connect(); }).code, Code::denied);
  EXPECT_EQ(status_of([&] { connect_to("etcd://guest:guest" + host); }).code, Code::denied);
  // A restarted etcd knows no log-in any more.
  server.restart();
  set(*store, "k", "4");
  EXPECT_EQ(watch->next(soon()).value, "4");
}

TEST(EtcdConnect, SaysWhyItFailed) {
  const std::string nobody = "127.0.0.1:" + std::to_string(free_port());
  const TimePoint start = now();
  const Status refused =
      status_of([&] { connect_to("etcd://" + nobody, within(milliseconds(300))); });
  EXPECT_EQ(refused.code, Code::unreachable);
  EXPECT_THAT(refused.message, AllOf(HasSubstr(nobody), HasSubstr("no connection")));
  EXPECT_GE(now() - start, milliseconds(300));

  httplib::Server web;
  const int port = web.bind_to_any_port("127.0.0.1");
  std::thread serving([&] { web.listen_after_bind(); });
  const Status disabled =
      status_of([&] { connect_to("etcd://127.0.0.1:" + std::to_string(port)); });
  web.stop();
  serving.join();
  EXPECT_EQ(disabled.code, Code::unsupported);
  EXPECT_THAT(disabled.message, HasSubstr("gateway is disabled"));
}

// Without a descriptor to break it by, an exchange with a silent server would keep its thread.
TEST(EtcdHttp, WithoutADescriptorToBreakItByNothingIsSent) {
  etcd::HttpPool pool;
  const os::Fd silent = os::listen_tcp("127.0.0.1", 0);
  const std::uint16_t port = os::local_port(silent);
  const auto start = [&] { return pool.start({{"127.0.0.1", port}, "/v3/kv/range", "{}", {}}); };
  // UBSan's first look at objects takes descriptors: it sees them all here.
  try {
    os::duplicate(-1);
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), HasSubstr("cannot duplicate a descriptor"));
  }
  const etcd::ExchangeGuard first(start());
  EXPECT_FALSE(first->wait({within(std::chrono::milliseconds(300))}));
  bool ended = false;
  std::shared_ptr<etcd::Exchange> exchange;
  {
    const os::NoDescriptors one_left(1);
    exchange = start();
    ended = exchange->wait({within(seconds(5))});
  }
  ASSERT_TRUE(ended) << "it was sent, and nothing can break it";
  EXPECT_FALSE(exchange->outcome().sent);
  EXPECT_THAT(exchange->outcome().cause, HasSubstr("cannot duplicate a descriptor"));
}

}  // namespace
}  // namespace tensorbus::store
