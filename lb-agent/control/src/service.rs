//! Deciding about Services: what becomes of an object that a client wants, and which addresses and ports it books.
//!
//! Nothing here reads a clock, a file or a socket: what is taken is asked through [`Taken`], chance through [`Dice`].

mod allocate;
mod annotations;
mod decide;
mod defaults;
mod families;
mod keep;
mod model;
mod ranges;
mod status;
mod validate;
mod warnings;

pub(crate) use decide::bookings;
pub use decide::{Booking, Decision, Refusal, create, update};
pub use model::{
    AffinityConfig, ClientIp, Family, Ingress, LoadBalancer, Port, Service, Spec, Status, Target,
};
pub use ranges::{AddressRange, Dice, PortRange, RangeError, Ranges, Taken};
pub use status::update_status;
pub use warnings::warnings;

#[cfg(test)]
mod tests;
