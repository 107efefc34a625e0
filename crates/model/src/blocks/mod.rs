//! The parts that layers are assembled from, each with its weights, its expectations of a file and
//! its forward pass. They know shapes and tensor names, not layers' order.

pub(crate) mod attention;
pub(crate) mod delta_net;
pub(crate) mod hyper_connection;
pub(crate) mod moe;
pub(crate) mod ngram;
