//! Small models and goldens for the workspace's own tests.
