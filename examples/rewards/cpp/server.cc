// A reward server in C++: 1 if the last number of the response is the ground truth, else 0.
//   server PORT [DATA_SOURCE…]     port 0: a free one; no data source: any
#include <algorithm>
#include <cctype>
#include <cmath>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include "argosy/api/reward/v1/reward_service.grpc.pb.h"

namespace reward = argosy::api::reward::v1;

constexpr int kLimit = 256;
constexpr int kMaxBytes = 64 << 20;  // of a message: gRPC's own default of 4 MB is too little

// The whole text as a finite number; commas may part its digits.
std::optional<double> Number(std::string text) {
  text.erase(std::remove(text.begin(), text.end(), ','), text.end());
  try {
    size_t used = 0;
    const double number = std::stod(text, &used);
    if (used == text.size() && std::isfinite(number)) return number;
  } catch (const std::logic_error&) {  // no number at all, or out of range
  }
  return std::nullopt;
}

// The last number of a text, as it is written there; no regular expression, which std::regex would do recursively.
std::string LastNumber(const std::string& text) {
  const auto digit = [](unsigned char c) { return std::isdigit(c) != 0; };
  size_t end = text.size();
  while (end > 0 && !digit(text[end - 1])) --end;
  size_t begin = end;
  while (begin > 0 && (digit(text[begin - 1]) || text[begin - 1] == ',' || text[begin - 1] == '.')) --begin;
  while (begin < end && !digit(text[begin])) ++begin;
  if (begin > 0 && text[begin - 1] == '-') --begin;
  return end - begin <= 64 ? text.substr(begin, end - begin) : "";
}

// A number is written the same as text and as JSON.
std::optional<double> Truth(const reward::ScoreItem& item) {
  const bool json = item.ground_truth_case() == reward::ScoreItem::kGroundTruthJson;
  return Number(json ? item.ground_truth_json() : item.ground_truth_text());
}

class Server final : public reward::RewardService::Service {
 public:
  explicit Server(std::vector<std::string> sources) : sources_(std::move(sources)) {}

  grpc::Status Score(grpc::ServerContext* context, const reward::ScoreRequest* request,
                     reward::ScoreResponse* response) override {
    if (request->items_size() > kLimit) {
      return {grpc::StatusCode::INVALID_ARGUMENT, "at most " + std::to_string(kLimit) + " items are taken"};
    }
    for (const auto& item : request->items()) {
      if (context->IsCancelled()) return {grpc::StatusCode::CANCELLED, "the deadline passed or the caller has gone"};
      Judge(item, response->add_results());
    }
    return grpc::Status::OK;
  }

  grpc::Status GetCapabilities(grpc::ServerContext*, const reward::GetCapabilitiesRequest*,
                               reward::GetCapabilitiesResponse* response) override {
    for (const auto& source : sources_) response->add_data_sources(source);
    response->set_max_batch_size(kLimit);
    response->set_name("cpp-example");
    response->set_version("1");
    return grpc::Status::OK;
  }

 private:
  void Judge(const reward::ScoreItem& item, reward::ScoreResult* result) const {
    *result->mutable_sample_id() = item.sample_id();
    const auto known = [&](const std::string& source) { return source == "*" || source == item.data_source(); };
    const auto truth = Truth(item);
    if (std::none_of(sources_.begin(), sources_.end(), known)) {
      result->mutable_failed()->set_reason("unknown_data_source");
    } else if (!truth) {  // this item's outcome, never a 0, and never an error of the call
      result->mutable_failed()->set_reason("bad_ground_truth");
    } else {
      const std::string pred = LastNumber(item.response_text());
      const bool right = Number(pred) == truth;
      result->mutable_scored()->set_score(right ? 1 : 0);
      (*result->mutable_scored()->mutable_parts())["acc"].set_flag(right);
      (*result->mutable_scored()->mutable_parts())["pred"].set_text(pred);
    }
  }

  const std::vector<std::string> sources_;
};

int main(int argc, char** argv) {
  if (argc < 2) return std::cerr << "usage: server PORT [DATA_SOURCE…]\n", 2;
  std::vector<std::string> sources(argv + 2, argv + argc);
  if (sources.empty()) sources.push_back("*");
  Server server(sources);
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  int port = 0;  // on loopback: calls are neither encrypted nor authenticated
  builder.AddListeningPort(std::string("127.0.0.1:") + argv[1], grpc::InsecureServerCredentials(), &port);
  builder.SetMaxReceiveMessageSize(kMaxBytes);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // else two servers may share a port without a word
  builder.RegisterService(&server);
  const auto running = builder.BuildAndStart();
  if (!running || port == 0) return std::cerr << "can't listen on port " << argv[1] << "\n", 1;
  std::cout << "listening on 127.0.0.1:" << port << std::endl;
  running->Wait();
}
