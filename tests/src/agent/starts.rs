//! Settings for the next start of an agent that differ from its first start: flags, capabilities, memory limit, log
//! file.

use std::path::Path;

use super::Agent;
use crate::memory::MemoryLimit;

impl Agent {
    /// Changes the value of a flag for later starts.
    pub fn set_flag(&mut self, flag: &str, value: &str) {
        match self.arguments.iter().position(|argument| argument == flag) {
            Some(at) => self.arguments.splice(at + 1..at + 2, [value.to_owned()]).for_each(drop),
            None => self.arguments.extend([flag.to_owned(), value.to_owned()]),
        }
    }

    /// Restricts later starts to these capabilities, as setpriv(1) names them: `-all,+bpf`.
    pub fn confine(&mut self, capabilities: &str) {
        let bounds = format!("--bounding-set={capabilities}");
        self.before = vec!["setpriv".to_owned(), bounds, "--inh-caps=-all".to_owned()];
    }

    /// Makes later starts members of a memory cgroup.
    pub fn limit_memory(&mut self, limit: &MemoryLimit) {
        let members = limit.members();
        self.start_by(&format!("echo $$ > {} && exec \"$@\"", members.display()));
    }

    /// Redirects standard output and standard error of later starts to this file.
    pub fn log_to(&mut self, file: &Path) {
        self.start_by(&format!("exec \"$@\" > {} 2>&1", file.display()));
    }

    /// Runs later starts through this shell script.
    fn start_by(&mut self, script: &str) {
        self.before = ["sh", "-c", script, "sh"].map(str::to_owned).to_vec();
    }
}
