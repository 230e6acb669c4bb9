//! `run`: the flags of the agent, and the other tasks that this verb can have.

use std::path::{Path, PathBuf};

use clap::{ArgAction, Args};

use crate::config::flags::{Run, named, path};
use crate::config::values;

/// `lb-agent run`
#[derive(Debug, Args)]
pub struct Start {
    /// The settings of the agent.
    #[command(flatten)]
    pub run: Run,
    /// The command in place of running.
    #[command(flatten)]
    pub instead: Instead,
}

/// Actions that kube-proxy's command line offers in place of running.
#[derive(Debug, Args)]
#[command(next_help_heading = "Instead of running")]
pub struct Instead {
    /// Remove everything, as `lb-agent cleanup` does, and exit.
    #[arg(long, conflicts_with = "init_only", value_name = "BOOL", value_parser = values::boolean, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false, hide_default_value = true)]
    pub cleanup: bool,
    /// Mount the bpffs, as `lb-agent init` does, and exit.
    #[arg(long, value_name = "BOOL", value_parser = values::boolean, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false, hide_default_value = true)]
    pub init_only: bool,
    /// Write the configuration in effect to a file, as two documents, and exit.
    #[arg(long, value_name = "FILE", value_parser = path())]
    pub write_config_to: Option<PathBuf>,
}

impl Instead {
    /// Returns the file for the configuration. As with kube-proxy, an empty name counts as absent.
    pub fn write_config_to(&self) -> Option<&Path> {
        named(self.write_config_to.as_ref())
    }
}
