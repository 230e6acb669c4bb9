//! Interfaces of new pods get their programs from a separate thread (ADR 0030): a pod waits neither for a long turn of
//! the main loop nor for the wake-ups before it.
//!
//! For a moment an interface belongs to the thread, while a CNI plugin may change it a few times. Then the main loop
//! finds it attached and takes it over, and the thread leaves it alone. So each interface has one writer at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tracing::{debug, info, warn};

use super::error::Error;
use crate::datapath::{Datapath, InterfaceRole, Newcomer};
use crate::maps::Maps;
use crate::metrics::Numbers;
use crate::node::links::{LinkChanges, Links};
use crate::node::watch::PublishedView;
use crate::node::{Assignment, ChangeSource, Identity, NetnsView, assignments_among};
use crate::syscall::raise_priority_most;

/// Time during which an interface belongs to the thread. A CNI plugin finishes sooner.
const MOMENT: Duration = Duration::from_secs(1);
/// Pause after a failure of the netlink socket.
const PAUSE: Duration = Duration::from_secs(1);

/// The state that the thread and the main loop share.
#[derive(Debug)]
pub(super) struct Newcomers(Mutex<Shared>);

#[derive(Debug)]
pub(super) struct Shared {
    programs: Newcomer,
    maps: Maps,
    numbers: Arc<Numbers>,
    /// The facts that decide roles. Without them nothing is attached.
    identity: Option<Arc<Identity>>,
    /// Interfaces that the main loop serves.
    taken: BTreeSet<u32>,
    /// Interfaces that the thread attached and the main loop has not taken over yet.
    early: BTreeMap<u32, Early>,
}

#[derive(Debug)]
struct Early {
    since: Instant,
    /// The assignment as last written; `None` if the interface disappeared since.
    written: Option<Assignment>,
}

impl Early {
    /// Reports whether a state of the interfaces as of `at` that gives this one no role decides about it. Where the
    /// main loop works with an old state, the interface may be too young to be in it.
    fn is_over(&self, now: Instant, at: Instant) -> bool {
        let is_known = self.written.is_none() || self.since + MOMENT <= at;
        self.since + MOMENT <= now && is_known
    }
}

impl Newcomers {
    /// Starts the thread. It ends when the result is dropped, and attaches nothing before [`Newcomers::open`].
    pub(super) fn start(
        datapath: &mut Datapath,
        views: watch::Receiver<PublishedView>,
        numbers: Arc<Numbers>,
    ) -> Result<Arc<Self>, Error> {
        let (identity, taken, early) = (None, BTreeSet::new(), BTreeMap::new());
        let (programs, maps) = (datapath.newcomer()?, datapath.maps()?);
        let shared = Shared { programs, maps, numbers, identity, taken, early };
        let newcomers = Arc::new(Self(Mutex::new(shared)));
        // A strong reference in the thread would keep it alive for ever.
        let weak = Arc::downgrade(&newcomers);
        let follow = move || follow(&weak, views);
        drop(thread::Builder::new().name("newcomers".into()).spawn(follow)?);
        Ok(newcomers)
    }

    /// Lets the thread attach interfaces from now on, with these facts.
    pub(super) fn open(&self, identity: &Identity) {
        let known = &mut self.shared().identity;
        if known.as_deref() != Some(identity) {
            *known = Some(Arc::new(identity.clone()));
        }
    }

    /// Reports whether an interface still belongs to the thread.
    pub(super) fn keeps(&self, device: &Assignment) -> bool {
        let of_a_pod = |early: &Early| early.since.elapsed() < MOMENT && early.written.is_some();
        device.role == InterfaceRole::Pod
            && self.shared().early.get(&device.index).is_some_and(of_a_pod)
    }

    /// Returns the number of interfaces that the thread attached and still owns.
    pub(super) fn count(&self) -> usize {
        self.shared().early.len()
    }

    /// Takes an interface over from the thread, which leaves it alone from now on. Returns whether the thread had
    /// attached it.
    pub(super) fn take(&self, index: u32) -> bool {
        // The lock is not held longer: the thread would wait, and a new pod with it, while the caller attaches.
        let early = {
            let mut shared = self.shared();
            shared.taken.insert(index);
            // The main loop decides with all facts; what the thread did early is checked again.
            shared.early.remove(&index)
        };
        early.is_some_and(|early| early.written.is_some())
    }

    /// Records that the main loop no longer serves an interface.
    pub(super) fn release(&self, index: u32) {
        self.shared().taken.remove(&index);
    }

    /// Returns the interfaces that the thread attached and that are no longer to be served, and forgets them.
    /// `indices`: those that are to be served, as of `at`. An interface that is younger than this state stays.
    pub(super) fn take_others(&self, indices: &BTreeSet<u32>, at: Instant) -> Vec<u32> {
        let now = Instant::now();
        let is_over = |index: &u32, it: &mut Early| it.is_over(now, at) && !indices.contains(index);
        self.shared().early.extract_if(.., is_over).map(|(index, _)| index).collect()
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attaches programs to interfaces of pods that have none, after events.
    ///
    /// It looks at all interfaces that the main loop does not serve: one can become a pod's because its other end moved
    /// to another namespace, which is an event about the other end.
    fn attach(&self, view: &NetnsView, LinkChanges { changed, gone }: &LinkChanges) {
        let (identity, taken) = {
            let mut shared = self.shared();
            for index in gone {
                if let Some(early) = shared.early.get_mut(index) {
                    early.written = None;
                }
            }
            // Events about interfaces that the main loop serves are frequent and concern only the loop.
            if gone.is_empty() && changed.is_subset(&shared.taken) {
                return;
            }
            (shared.identity.clone(), shared.taken.clone())
        };
        let Some(identity) = identity else { return };
        let is_pods = |device: &Assignment| device.role == InterfaceRole::Pod;
        let others = |index| !taken.contains(&index);
        for device in assignments_among(view, &identity, others).into_iter().filter(is_pods) {
            // The lock is taken anew for each interface, so that the main loop waits for one of them at most.
            self.shared().attach(device);
        }
    }
}

impl Shared {
    fn attach(&mut self, device: Assignment) {
        let index = device.index;
        let is_written =
            |early: &Early| early.written.as_ref().is_some_and(|written| *written == device);
        // The main loop may have taken the interface over since the caller copied the set.
        if self.taken.contains(&index) || self.early.get(&index).is_some_and(is_written) {
            return;
        }
        let (name, early) = (device.name.clone(), self.early.get(&index));
        let (since, is_first) = (early.map_or_else(Instant::now, |it| it.since), early.is_none());
        // The entry is written first: without it a detector by interface (contract 3.4) would not know a pod of this
        // node.
        let put = self.maps.put_device(index, &device.device);
        let attached = put.map_err(Error::from).and_then(|()| Ok(self.programs.attach(index)?));
        let written = attached.is_ok().then_some(device);
        drop(self.early.insert(index, Early { since, written }));
        match attached {
            Ok(()) if is_first => {
                self.numbers.attached(ChangeSource::Event);
                info!(
                    interface = name,
                    index,
                    role = InterfaceRole::Pod.name(),
                    "programs attached"
                );
            }
            Ok(()) => {}
            // The main loop retries, and logs a warning.
            Err(error) => {
                let error = crate::chain(&error);
                debug!(interface = name, error, "programs could not be attached at once");
            }
        }
    }
}

/// Follows links until the agent drops its side.
fn follow(newcomers: &Weak<Newcomers>, mut views: watch::Receiver<PublishedView>) {
    // The first packet of a pod can come within milliseconds.
    if let Err(error) = raise_priority_most() {
        debug!(%error, "priority not raised: it needs CAP_SYS_NICE");
    }
    while newcomers.strong_count() > 0 {
        if let Err(error) = attach_each(newcomers, &mut views) {
            warn!(
                %error,
                "watch of new interfaces failed; the main loop attaches programs until it works again"
            );
            thread::park_timeout(PAUSE);
        }
    }
}

fn attach_each(
    newcomers: &Weak<Newcomers>,
    views: &mut watch::Receiver<PublishedView>,
) -> io::Result<()> {
    let mut links = Links::follow()?;
    // This connection's view starts without addresses and routes.
    views.mark_changed();
    loop {
        let changes = links.next()?;
        let Some(newcomers) = newcomers.upgrade() else { return Ok(()) };
        // Addresses and routes are copied once for each view instead of for each event.
        if views.has_changed().unwrap_or(false)
            && let Some(view) = views.borrow_and_update().as_ref().map(|it| Arc::clone(&it.view))
        {
            links.view.addresses.clone_from(&view.addresses);
            links.view.routed.clone_from(&view.routed);
        }
        newcomers.attach(&links.view, &changes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_interface_outlasts_an_old_state_of_the_interfaces() {
        let early = |written| Early { since: Instant::now(), written };
        let pod = Assignment {
            index: 7,
            number: 1,
            name: "veth7".into(),
            role: InterfaceRole::Pod,
            device: lb_common::config::Device::default(),
            sources: Vec::new(),
        };
        let (there, gone) = (early(Some(pod)), early(None));
        let later = there.since + 10 * MOMENT;
        assert!(!there.is_over(later, there.since), "it may be missing in that state");
        assert!(there.is_over(later, later));
        assert!(gone.is_over(later, gone.since), "an event reported its end");
        assert!(!gone.is_over(gone.since, later), "a CNI plugin may still change it");
    }
}
