// libibverbs as a table of function pointers, opened at the first use, so that one binary runs with and
// without it. Functions that verbs.h defines as inline over a context's operations (posting, polling) are
// called directly; everything that is a symbol of the library goes through this table.
//
// The table is immutable, lives as long as the process and is thread-safe. Tests put one of their own in its
// place.
#pragma once

#include <infiniband/verbs.h>

#include "common/status.h"

namespace nacre::verbs {

// Macros of verbs.h that would hide symbols of the same names.
#undef ibv_query_port
#undef ibv_reg_mr

struct Ibverbs {
  decltype(&::ibv_get_device_list) get_device_list;
  decltype(&::ibv_free_device_list) free_device_list;
  decltype(&::ibv_get_device_name) get_device_name;
  decltype(&::ibv_open_device) open_device;
  decltype(&::ibv_close_device) close_device;
  decltype(&::ibv_query_device) query_device;
  decltype(&::ibv_query_port) query_port;
  decltype(&::_ibv_query_gid_ex) query_gid_ex;
  decltype(&::_ibv_query_gid_table) query_gid_table;
  decltype(&::ibv_alloc_pd) alloc_pd;
  decltype(&::ibv_dealloc_pd) dealloc_pd;
  decltype(&::ibv_reg_mr) reg_mr;
  decltype(&::ibv_reg_dmabuf_mr) reg_dmabuf_mr;  // null: the library has none
  decltype(&::ibv_dereg_mr) dereg_mr;
  decltype(&::ibv_create_comp_channel) create_comp_channel;
  decltype(&::ibv_destroy_comp_channel) destroy_comp_channel;
  decltype(&::ibv_create_cq) create_cq;
  decltype(&::ibv_destroy_cq) destroy_cq;
  decltype(&::ibv_get_cq_event) get_cq_event;
  decltype(&::ibv_ack_cq_events) ack_cq_events;
  decltype(&::ibv_create_srq) create_srq;
  decltype(&::ibv_destroy_srq) destroy_srq;
  decltype(&::ibv_create_qp) create_qp;
  decltype(&::ibv_modify_qp) modify_qp;
  decltype(&::ibv_destroy_qp) destroy_qp;
  decltype(&::ibv_get_async_event) get_async_event;
  decltype(&::ibv_ack_async_event) ack_async_event;
  decltype(&::ibv_event_type_str) event_type_str;
  decltype(&::ibv_wc_status_str) wc_status_str;
};

// UNAVAILABLE: the library or a function of it is not there; says what to install.
StatusOr<const Ibverbs*> LoadIbverbs();

// For tests: what LoadIbverbs finds from now on; null: the library again.
void UseIbverbs(const Ibverbs* table);

}  // namespace nacre::verbs
