//! Recovery: what a killed pull left behind.
