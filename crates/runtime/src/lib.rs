//! Engine and Session: prefill and decode over streamed experts within one memory budget
