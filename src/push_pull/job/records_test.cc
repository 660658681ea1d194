#include "push_pull/job/records.h"

#include <gtest/gtest.h>

namespace tensorbus::push_pull {
namespace {

NodeRecord some_node() {
  NodeRecord record;
  record.transport = Transport::network;
  record.address = {{"host", 12, 34, {}, "worker 0"}, "shm", "there"};
  record.hosts.resize(2);
  record.hosts[1].bytes[15] = 1;
  record.seat = {"machine", {{5, 6}}};
  return record;
}

TEST(PushPullRecords, AreReadAsTheyWereWritten) {
  const NodeRecord written = some_node();
  const auto read = tensorbus::wire::read<NodeRecord>(tensorbus::wire::write(written));
  EXPECT_EQ(read.transport, written.transport);
  EXPECT_EQ(read.address.identity.name, "worker 0");
  EXPECT_EQ(read.address.where, "there");
  EXPECT_EQ(read.hosts, written.hosts);
  EXPECT_EQ(read.seat.machine, "machine");
  EXPECT_EQ(read.seat.cores.words, written.seat.cores.words);
}

TEST(PushPullRecords, AWayThatNobodyKnowsIsRefused) {
  NodeRecord record = some_node();
  record.transport = static_cast<Transport>(9);
  const std::string bytes = tensorbus::wire::write(record);
  try {
    tensorbus::wire::read<NodeRecord>(bytes);
    ADD_FAILURE() << "it was read";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("malformed push-pull node: transport"),
              std::string::npos)
        << error.what();
  }
}

TEST(PushPullRecords, AJobThatCannotBeIsRefused) {
  const std::string bytes = tensorbus::wire::write(JobRecord{"id", "secret", 1, 0, 1});
  EXPECT_THROW(tensorbus::wire::read<JobRecord>(bytes), Error);
}

}  // namespace
}  // namespace tensorbus::push_pull
