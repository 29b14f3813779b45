// What the pages of the debug server say, as JSON. Must not know how the server shows it.

#include "debug_handlers.hpp"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <torch/csrc/distributed/c10d/control_plane/Handlers.hpp>

#include "comm.hpp"
#include "errors.hpp"
#include "handles.hpp"

namespace ferrocomm {
namespace {

using c10d::control_plane::Request;
using c10d::control_plane::Response;

std::string recorded(bool only_active) {
  fc_string* json = nullptr;
  check(fc_recorder_dump(0, only_active ? 1 : 0, &json));
  return take_string(json);
}

// The answer, or status 500 with the reason.
template <typename F>
void answer(Response& response, F&& content) {
  try {
    response.setContent(content(), "application/json");
    response.setStatus(200);
  } catch (const std::exception& error) {
    response.setContent(error.what(), "text/plain");
    response.setStatus(500);
  }
}

void trace(const Request& request, Response& response) {
  answer(response, [&] { return recorded(request.getParam("onlyactive") == "true"); });
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char letter : text) {
    char code[8];
    if (static_cast<unsigned char>(letter) < 0x20) {
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(letter));
      out += code;
      continue;
    }
    if (letter == '"' || letter == '\\') out += '\\';
    out += letter;
  }
  return out + '"';
}

// Healthy unless a communicator has failed; one that was aborted was meant to end.
std::string health_of_comms() {
  bool healthy = true;
  std::string comms;
  for (const auto& comm : living_comms()) {
    const char* state = nullptr;
    fc_string* error = nullptr;
    check(fc_comm_state(comm.get(), &state));
    check(fc_comm_error(comm.get(), &error));
    healthy = healthy && std::string_view(state) != "failed";
    comms += (comms.empty() ? "" : ", ") + ("{\"name\": " + quoted(fc_comm_name(comm.get()))) +
             ", \"state\": " + quoted(state) + ", \"error\": " + quoted(take_string(error)) + "}";
  }
  return std::string("{\"healthy\": ") + (healthy ? "true" : "false") + ", \"communicators\": [" +
         comms + "]}";
}

void health(const Request& /*request*/, Response& response) { answer(response, health_of_comms); }

std::string environment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

// The file that FlightRecorderHook.dump_file writes.
std::string write_dump() {
  const std::string rank = environment("TORCHCOMM_RANK", environment("RANK", "0").c_str());
  const std::filesystem::path path =
      environment("TORCHCOMM_FR_DUMP_TEMP_FILE", "torchcomm_fr_rank_") + rank;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path());
  // A reader never sees half a file: written beside it, then renamed.
  const std::filesystem::path unfinished = path.string() + ".debug.tmp";
  std::ofstream file(unfinished);
  file << recorded(false);
  file.close();
  if (!file) throw std::runtime_error("cannot write " + unfinished.string());
  std::filesystem::rename(unfinished, path);
  return std::filesystem::absolute(path);
}

void dump_file(const Request& /*request*/, Response& response) {
  answer(response, [] { return "{\"file\": " + quoted(write_dump()) + "}"; });
}

}  // namespace

void register_debug_handlers() {
  c10d::control_plane::registerHandler("torchcomms_fr_trace_json", trace);
  c10d::control_plane::registerHandler("torchcomms_health_check", health);
  c10d::control_plane::registerHandler("torchcomms_fr_dump_file", dump_file);
}

}  // namespace ferrocomm
