//! Watches the file of `--config`. When it changes, the agent restarts in the same process; packets are not affected,
//! as with any restart.
//!
//! An invalid file, one without a document, and one with which the agent could not start are reported and have no
//! effect: all nodes read the file at about the same time. kube-proxy exits in all these cases.

use std::path::Path;
use std::time::Duration;

use tokio::fs::read_to_string;
use tokio::time::sleep;
use tracing::{info, warn};

use super::inputs::server;
use super::memory;
use super::sizes::{Existing, chosen};
use crate::config::Config;
use crate::config::flags::Run;
use crate::datapath::{missing_cgroup2, pinned_sizes};
use crate::reconcile::Limits;

/// Interval between readings. A `ConfigMap` takes a minute to reach the file; reading it is cheap.
const PAUSE: Duration = Duration::from_secs(1);

/// Waits until the file contains another valid configuration than `read`, and returns its text. Never returns without a
/// file.
///
/// `read` is the text that was read before the programs were verified, which takes seconds: a change meanwhile must not
/// be missed. `need` is what the objects needed of the maps at the start.
pub(super) async fn changed(options: &Run, read: Option<&str>, need: &Limits) -> String {
    let Some(file) = options.config_file() else { return std::future::pending().await };
    let mut seen = Seen { current: read, ..Seen::default() };
    loop {
        sleep(PAUSE).await;
        let Some(text) = text(file).await else {
            // The file is being replaced; its next text counts as new, and must be read twice.
            seen.last = None;
            continue;
        };
        if !seen.is_due(&text) {
            continue;
        }
        match check(options, read, &text, need, Memory::of_this_machine()).await {
            Ok(()) => {
                info!(file = %file.display(), "configuration changed; restarting");
                return text;
            }
            Err(ConfigRefusal { reason, may_pass }) => {
                if seen.refused.as_ref().is_none_or(|(refused, _)| *refused != text) {
                    let file = file.display();
                    warn!(%file, error = reason, "changed configuration is invalid; keeping the current one");
                }
                seen.refused = Some((text, may_pass));
            }
        }
    }
}

/// The texts of the file so far.
#[derive(Default)]
struct Seen<'a> {
    /// The text that the agent runs with.
    current: Option<&'a str>,
    /// The text of the last reading.
    last: Option<String>,
    /// The invalid text that was reported last, and whether it may be valid later. A file that stays invalid is
    /// reported once.
    refused: Option<(String, bool)>,
}

impl Seen<'_> {
    /// Takes in a reading. Reports whether its text must be checked.
    fn is_due(&mut self, text: &str) -> bool {
        // An editor truncates a file before it writes, and a long write takes several calls. Half of a file is often
        // valid, so a text counts only if it has not changed since the last reading.
        let is_settled = self.last.as_deref() == Some(text);
        if !is_settled {
            self.last = Some(text.to_owned());
        }
        let is_refused =
            self.refused.as_ref().is_some_and(|(refused, may_pass)| refused == text && !may_pass);
        is_settled && self.current != Some(text) && !is_refused
    }
}

/// The reason why a changed text has no effect.
#[derive(Debug, PartialEq, Eq)]
struct ConfigRefusal {
    reason: String,
    /// The reason is outside of the text, as a file that is mounted later.
    may_pass: bool,
}

impl ConfigRefusal {
    fn of_text(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), may_pass: false }
    }

    fn of_node(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), may_pass: true }
    }
}

/// The memory that maps may take, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Memory {
    /// The limit of the agent's cgroups.
    limit: Option<u64>,
    machine: Option<u64>,
}

impl Memory {
    fn of_this_machine() -> Self {
        Self { limit: memory::limit(), machine: memory::of_machine() }
    }
}

/// Checks a changed text. An empty one would be valid at a first start, where kube-proxy accepts it; as a change it is
/// more probably a mistake. `read` is the text that the agent runs with.
async fn check(
    options: &Run,
    read: Option<&str>,
    text: &str,
    need: &Limits,
    memory: Memory,
) -> Result<(), ConfigRefusal> {
    let config = Config::of(options, Some(text));
    let config = config.map_err(|error| ConfigRefusal::of_text(crate::chain(&error)))?;
    if config.documents == 0 {
        return Err(ConfigRefusal::of_text("it contains no document"));
    }
    let current = Config::of(options, read).unwrap_or_default();
    // The next run would refuse to start beside the programs of this one, which are pinned in the other directory.
    if config.bpf_dir.value != current.bpf_dir.value {
        return Err(ConfigRefusal::of_text(
            "bpfDir: cannot change while the agent runs; stop it, run `lb-agent cleanup`, and start it with the other \
             directory",
        ));
    }
    if let Some(missing) = config.cgroup.value.as_deref().and_then(missing_cgroup2) {
        return Err(ConfigRefusal::of_node(format!("cgroup: {missing}")));
    }
    if let Some(problem) = too_large(&config, &current, need, memory) {
        return Err(ConfigRefusal::of_node(format!("mapSizes: {problem}")));
    }
    if options.manifests.is_none() && config.kubeconfig.value != current.kubeconfig.value {
        let checked = server(&config).check().await;
        checked.map_err(|error| ConfigRefusal::of_node(crate::chain(&error)))?;
    }
    Ok(())
}

/// Returns the problem that the maps of a changed configuration do not fit the memory. One whose maps take no more than
/// those of the current one has no such problem: it makes nothing worse.
fn too_large(
    changed: &Config,
    current: &Config,
    need: &Limits,
    Memory { limit, machine }: Memory,
) -> Option<String> {
    if changed.sizes() == current.sizes() {
        return None;
    }
    let existing = Existing { sizes: pinned_sizes(&current.bpf_dir.value), stay: false };
    let [changed, current] =
        [changed, current].map(|config| chosen(&config.sizes(), need, &existing, limit));
    if memory::needed(&changed, need) <= memory::needed(&current, need) {
        return None;
    }
    memory::problem(&changed, need, limit)
        .or_else(|| memory::machine_problem(&changed, need, machine))
}

/// Reads the file. A file that does not exist for a moment counts as unchanged.
async fn text(file: &Path) -> Option<String> {
    read_to_string(file).await.ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Parser as _;
    use tokio::time::timeout;

    use super::*;
    use crate::cli::{Cli, Command};

    const NOTHING: Limits = Limits { services: 0, backends: 1, lines: 0, sources: 0 };

    /// Checks a changed text on a machine with enough memory.
    async fn check(options: &Run, read: Option<&str>, text: &str) -> Result<(), ConfigRefusal> {
        super::check(options, read, text, &NOTHING, Memory::default()).await
    }

    fn document(lines: &str) -> String {
        format!("apiVersion: lb.dev/v1alpha1\nkind: AgentConfiguration\n{lines}\n")
    }

    fn options(file: &Path) -> Run {
        let arguments = ["lb-agent", "run", "--config", file.to_str().unwrap()];
        let command = Cli::try_parse_from(arguments).unwrap().command;
        let Command::Run(start) = command else { panic!("{command:?}") };
        start.run
    }

    /// The file is replaced before its first check.
    #[tokio::test]
    async fn change_since_the_file_was_read_is_seen() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("agent.yaml");
        let (read, other) = (document("masquerade: edge"), document("masquerade: kube-proxy"));
        fs::write(&file, &other).unwrap();
        let options = options(&file);
        let seen = changed(&options, Some(&read), &NOTHING);
        let seen = timeout(Duration::from_mins(1), seen).await;
        assert_eq!(seen.expect("the change was missed"), other);
    }

    #[test]
    fn text_counts_when_two_readings_in_a_row_have_it() {
        let mut seen = Seen { current: Some("a"), ..Seen::default() };
        let due = |text| seen.is_due(text);
        assert_eq!(["a", "", "ab", "abc", "a", "a"].map(due), [false; 6]);
        let due = |text| seen.is_due(text);
        assert_eq!(["abc", "abc"].map(due), [false, true]);
        seen.refused = Some(("abc".into(), false));
        assert_eq!(["abc", "abc"].map(|text| seen.is_due(text)), [false; 2], "reported once");
        seen.refused = Some(("abc".into(), true));
        assert!(seen.is_due("abc"), "a file that it names may be mounted later");
    }

    #[tokio::test]
    async fn text_without_a_document_changes_nothing() {
        let options = options(Path::new("agent.yaml"));
        for text in ["", "\n", "---\n", "---\n---\n", "# kind: AgentConfiguration\n"] {
            assert!(check(&options, None, text).await.is_err(), "{text:?}");
            // At a first start kube-proxy accepts such a file.
            assert!(Config::of(&options, Some(text)).is_ok(), "{text:?}");
        }
        assert_eq!(check(&options, None, &document("masquerade: edge")).await, Ok(()));
        let error = check(&options, None, &document("masquerade: never")).await.unwrap_err();
        assert!(error.reason.contains("line 3") && !error.may_pass, "{error:?}");
    }

    /// The agent would end with an error after its restart, on all nodes.
    #[tokio::test]
    async fn text_with_which_the_agent_cannot_start_changes_nothing() {
        let options = options(Path::new("agent.yaml"));
        let read = document("bpfDir: /sys/fs/bpf/lb");
        let cases = [
            ("bpfDir: /sys/fs/bpf/other", "bpfDir: cannot change", false),
            ("cgroup: /proc", "cgroup: /proc is not a cgroup v2", true),
            ("cgroup: /nowhere", "cgroup: /nowhere is not a cgroup v2", true),
        ];
        for (line, expected, may_pass) in cases {
            let error = check(&options, Some(&read), &document(line)).await.unwrap_err();
            assert!(error.reason.starts_with(expected), "{error:?}");
            assert_eq!(error.may_pass, may_pass, "{error:?}");
        }
        let proxy = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
                     clientConnection: {kubeconfig: /nowhere/config}\n";
        let error = check(&options, Some(&read), proxy).await.unwrap_err();
        assert!(error.reason.starts_with("kubeconfig /nowhere/config"), "{error:?}");
        assert!(error.may_pass, "a Secret may be mounted later than the ConfigMap");
    }

    /// The kernel refuses the maps at the next start, or kills the agent when packets fill them, on all nodes.
    #[tokio::test]
    async fn text_with_map_sizes_that_do_not_fit_changes_nothing() {
        let options = options(Path::new("agent.yaml"));
        let check = async |read: &str, text: &str, mebibytes: u64| {
            let (read, text) = (document(read), document(text));
            let memory = Memory { limit: Some(mebibytes << 20), machine: None };
            super::check(&options, Some(&read), &text, &NOTHING, memory).await
        };
        let sizes = |lines: u32| format!("mapSizes: {{MAGLEV: {lines}}}");
        let (some, many) = (sizes(3 << 20), sizes(4 << 20));
        let error = check("", &many, 128).await.unwrap_err();
        let expected = "mapSizes: memory limit of the agent is 128 MiB";
        assert!(error.reason.starts_with(expected) && error.may_pass, "{error:?}");
        assert_eq!(check("", &many, 1_024).await, Ok(()));
        let other = format!("{many}\nmasquerade: kube-proxy");
        assert_eq!(check(&many, &other, 128).await, Ok(()), "other settings still change");
        assert_eq!(check(&many, &some, 128).await, Ok(()), "it takes less than now");
        let machine = Memory { limit: None, machine: Some(128 << 20) };
        let text = document(&many);
        let error = super::check(&options, None, &text, &NOTHING, machine).await.unwrap_err();
        assert!(error.reason.starts_with("mapSizes: this machine has 128 MiB"), "{error:?}");
        let error = check("", &sizes(u32::MAX), 1_024).await.unwrap_err();
        assert!(error.reason.contains("MAGLEV cannot have 4294967295 entries"), "{error:?}");
        assert!(!error.may_pass, "no node has such a map");
    }
}
