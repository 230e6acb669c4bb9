//! The table of frontends: one a line, with up to eight backends unless it is a wide one.

use super::{DRAINING, LEFT, ListedBackend, ListedFrontend, NO_LOCAL_BACKENDS, SERVED};
use crate::show::print::{Row, Tone};
use crate::words;

/// Number of backends of a frontend that a table shows; a wide one shows all.
const BRIEF: usize = 8;

impl Row for ListedFrontend {
    const HEADINGS: (&'static [&'static str], &'static [&'static str]) = (
        &["FRONTEND", "KIND", "SERVICE", "POLICY", "AFFINITY", "BACKENDS"],
        &["ID", "GENERATION", "SOURCES"],
    );
    const NONE: &'static str = "no services";

    fn cells(&self) -> Vec<String> {
        self.cells_with(usize::MAX)
    }

    fn brief(&self) -> Vec<String> {
        self.cells_with(BRIEF)
    }

    fn name(&self) -> String {
        self.frontend.clone()
    }

    fn tone(&self) -> Tone {
        tone(self.state)
    }
}

impl ListedFrontend {
    /// Returns the cells of a line, with up to `most` backends.
    fn cells_with(&self, most: usize) -> Vec<String> {
        let affinity = match self.affinity_seconds {
            0 => String::new(),
            seconds => format!("{seconds}s"),
        };
        let backends = match (self.state, self.used()) {
            (DRAINING | LEFT | NO_LOCAL_BACKENDS, _) => format!("({})", self.state),
            (_, []) => "(none)".to_owned(),
            (_, used) => {
                let shown = used.iter().take(most).map(ListedBackend::in_table);
                let more = used.len().saturating_sub(most);
                let more = (more > 0).then(|| format!("+{more} more"));
                shown.chain(more).collect::<Vec<_>>().join(" ")
            }
        };
        vec![
            self.frontend.clone(),
            self.kind.into(),
            words::service(self.id, self.service.as_deref()),
            self.policy.into(),
            affinity,
            backends,
            self.id.to_string(),
            self.generation.to_string(),
            self.sources().unwrap_or_else(|| "any".into()),
        ]
    }
}

impl ListedBackend {
    /// Returns the address, with a star if the backend is on this node.
    pub(in crate::show) fn in_table(&self) -> String {
        format!("{}{}", self.address, if self.on_this_node { "*" } else { "" })
    }
}

/// Returns the colour of a line with this state.
pub(in crate::show) fn tone(state: &str) -> Tone {
    match state {
        SERVED | NO_LOCAL_BACKENDS | LEFT => Tone::Plain,
        DRAINING => Tone::Faint,
        _ => Tone::Bad,
    }
}
