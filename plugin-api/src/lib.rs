//! The frozen ABI between a Synapse host and its engine plugins.
