//! Interfaces of new pods, which get their programs from a thread that does nothing else (ADR 0030): a pod waits
//! neither for a long turn of the main loop nor for the wake-ups on the way to it.
//!
//! An interface is the thread's for a moment, in which a CNI plugin may change it some times; then the main loop finds
//! it attached and takes it over. From then on the thread leaves it alone. So each interface has one writer at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tracing::{debug, info, warn};

use super::error::Error;
use crate::datapath::{Datapath, Newcomer, Role};
use crate::maps::Maps;
use crate::metrics::Numbers;
use crate::node::links::{Links, Told};
use crate::node::watch::Shown;
use crate::node::{Assignment, ChangeSource, Identity, View, assignments};
use crate::syscall::raise_priority_most;

/// How long an interface is the thread's: a CNI plugin is done with it sooner.
const MOMENT: Duration = Duration::from_secs(1);
/// After a failure of its socket.
const PAUSE: Duration = Duration::from_secs(1);

/// The part that the thread and the main loop share.
#[derive(Debug)]
pub(super) struct Newcomers(Mutex<Shared>);

#[derive(Debug)]
pub(super) struct Shared {
    programs: Newcomer,
    maps: Maps,
    numbers: Arc<Numbers>,
    /// The facts by which roles are decided; nothing is attached without them.
    identity: Option<Arc<Identity>>,
    /// Interfaces that the main loop serves.
    taken: BTreeSet<u32>,
    /// Interfaces that the thread has attached and the main loop has not taken over yet.
    early: BTreeMap<u32, Early>,
}

#[derive(Debug)]
struct Early {
    since: Instant,
    /// As it was written last; nothing where the interface went since.
    written: Option<Assignment>,
}

impl Newcomers {
    /// Starts the thread, which ends with the result. It attaches nothing before [`Newcomers::open`].
    pub(super) fn start(
        datapath: &mut Datapath,
        views: watch::Receiver<Shown>,
        numbers: Arc<Numbers>,
    ) -> Result<Arc<Self>, Error> {
        let (identity, taken, early) = (None, BTreeSet::new(), BTreeMap::new());
        let (programs, maps) = (datapath.newcomer()?, datapath.maps()?);
        let shared = Shared { programs, maps, numbers, identity, taken, early };
        let newcomers = Arc::new(Self(Mutex::new(shared)));
        let weak = Arc::downgrade(&newcomers);
        let follow = move || follow(&weak, views);
        drop(thread::Builder::new().name("newcomers".into()).spawn(follow)?);
        Ok(newcomers)
    }

    /// Lets the thread attach from now on, by these facts.
    pub(super) fn open(&self, identity: &Identity) {
        let known = &mut self.shared().identity;
        if known.as_deref() != Some(identity) {
            *known = Some(Arc::new(identity.clone()));
        }
    }

    /// Whether an interface is the thread's for a while yet.
    pub(super) fn keeps(&self, device: &Assignment) -> bool {
        let of_a_pod = |early: &Early| early.since.elapsed() < MOMENT && early.written.is_some();
        device.role == Role::Pod && self.shared().early.get(&device.index).is_some_and(of_a_pod)
    }

    /// How many interfaces are.
    pub(super) fn count(&self) -> usize {
        self.shared().early.len()
    }

    /// Takes an interface over. Nobody else attaches anything while the caller holds the result.
    pub(super) fn take(&self, index: u32) -> Taking<'_> {
        let mut shared = self.shared();
        let early = shared.early.remove(&index);
        let was_early = early.is_some_and(|early| early.written.is_some());
        shared.taken.insert(index);
        Taking { was_early, _turn: shared }
    }

    /// The main loop serves an interface no longer.
    pub(super) fn release(&self, index: u32) {
        self.shared().taken.remove(&index);
    }

    /// Interfaces that the thread attached and that are none to be served any more; they are nobody's then.
    pub(super) fn take_others(&self, indices: &BTreeSet<u32>) -> Vec<u32> {
        let is_over =
            |index: &u32, it: &mut Early| it.since.elapsed() >= MOMENT && !indices.contains(index);
        self.shared().early.extract_if(.., is_over).map(|(index, _)| index).collect()
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attaches the programs of pods' interfaces that have none, after events told of these.
    ///
    /// Not only of those that changed: what makes one a pod's may be that its other end left this namespace.
    fn attach(&self, view: &View, Told { changed, gone }: &Told) {
        let identity = {
            let mut shared = self.shared();
            for index in gone {
                if let Some(early) = shared.early.get_mut(index) {
                    early.written = None;
                }
            }
            if gone.is_empty() && changed.is_subset(&shared.taken) {
                return;
            }
            shared.identity.clone()
        };
        let Some(identity) = identity else { return };
        let is_pods = |device: &Assignment| device.role == Role::Pod;
        for device in assignments(view, &identity).into_iter().filter(is_pods) {
            self.shared().attach(device);
        }
    }
}

/// An interface that the main loop takes over.
#[derive(Debug)]
pub(super) struct Taking<'a> {
    /// The thread had attached it.
    pub(super) was_early: bool,
    _turn: MutexGuard<'a, Shared>,
}

impl Shared {
    fn attach(&mut self, device: Assignment) {
        let index = device.index;
        let is_written =
            |early: &Early| early.written.as_ref().is_some_and(|written| *written == device);
        if self.taken.contains(&index) || self.early.get(&index).is_some_and(is_written) {
            return;
        }
        let (name, early) = (device.name.clone(), self.early.get(&index));
        let (since, is_first) = (early.map_or_else(Instant::now, |it| it.since), early.is_none());
        let put = self.maps.put_device(index, &device.device);
        let attached = put.map_err(Error::from).and_then(|()| Ok(self.programs.attach(index)?));
        let written = attached.is_ok().then_some(device);
        drop(self.early.insert(index, Early { since, written }));
        match attached {
            Ok(()) if is_first => {
                self.numbers.attached(ChangeSource::Event);
                info!(device = name, index, role = Role::Pod.name(), "programs attached");
            }
            Ok(()) => {}
            // The main loop tries again, and says so.
            Err(error) => {
                let error = crate::chain(&error);
                debug!(device = name, error, "programs could not be attached at once");
            }
        }
    }
}

/// Follows links until nobody needs it any more.
fn follow(newcomers: &Weak<Newcomers>, mut views: watch::Receiver<Shown>) {
    if let Err(error) = raise_priority_most() {
        debug!(%error, "priority not raised: it needs CAP_SYS_NICE");
    }
    while newcomers.strong_count() > 0 {
        if let Err(error) = attach_each(newcomers, &mut views) {
            warn!(%error, "watching new interfaces failed; the main loop attaches them meanwhile");
            thread::park_timeout(PAUSE);
        }
    }
}

fn attach_each(newcomers: &Weak<Newcomers>, views: &mut watch::Receiver<Shown>) -> io::Result<()> {
    let mut links = Links::follow()?;
    // Its view begins without addresses and routes.
    views.mark_changed();
    loop {
        let told = links.next()?;
        let Some(newcomers) = newcomers.upgrade() else { return Ok(()) };
        // Copied once for each view, and not for each event.
        if views.has_changed().unwrap_or(false)
            && let Some((shown, _)) = &*views.borrow_and_update()
        {
            links.view.addresses.clone_from(&shown.addresses);
            links.view.ways.clone_from(&shown.ways);
        }
        newcomers.attach(&links.view, &told);
    }
}
