//! Work on a background thread until it is stopped, and the account that it keeps.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use crate::join_all::locked;

/// A thread that works until it is stopped or dropped, and its account.
#[derive(Debug)]
pub(super) struct Background<A> {
    stop: Arc<AtomicBool>,
    account: Arc<Mutex<A>>,
    thread: Option<JoinHandle<()>>,
}

impl<A: Clone + Send + 'static> Background<A> {
    /// Starts `work`, which must end soon after its flag is set.
    pub(super) fn start(
        account: A,
        work: impl FnOnce(&AtomicBool, &Mutex<A>) + Send + 'static,
    ) -> Self {
        let (stop, account) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(account)));
        let (flag, shared) = (Arc::clone(&stop), Arc::clone(&account));
        let thread = Some(thread::spawn(move || work(&flag, &shared)));
        Self { stop, account, thread }
    }

    /// A copy of the account so far.
    pub(super) fn so_far(&self) -> A {
        locked(&self.account).clone()
    }

    /// Stops the thread and returns the account.
    pub(super) fn finish(mut self) -> A {
        self.end();
        self.so_far()
    }
}

impl<A> Background<A> {
    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        drop(self.thread.take().map(JoinHandle::join));
    }
}

impl<A> Drop for Background<A> {
    fn drop(&mut self) {
        self.end();
    }
}
