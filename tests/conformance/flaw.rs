//! What can be wrong with an executor.

/// One flaw, and the rule that it breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    None,
    /// Allowed.
    AlwaysInFull,
    /// Allowed: it stops by itself where its shards are not taken away at once.
    LosesPatience,
    /// No rule: without a lease it answers commands so late that nobody waits for it.
    Stalls,
    /// Allowed: commands are answered 0.3 s late, and shards take a quarter of the lease to stop.
    IsSlow,

    /// E1: the same number in every process.
    FixedIncarnation,
    /// E1
    CountsFromAnswer,
    /// E1
    TakesCommandsUnregistered,
    /// E2
    RenewsLate,
    /// E2: only the first time.
    RenewsLateAtFirst,
    /// E3: commands do not raise the mark that renewals show.
    OldMarks,
    /// E3
    AnswersWithoutMark,
    /// E4
    TakesStaleCommands,
    /// E4: compares revisions only.
    ForgetsTerms,
    /// E5
    TakesForeignIncarnation,
    /// E6
    TakesForeignCluster,
    /// E7: stops nothing because of a command.
    Adds,
    /// E7
    OmitsStarting,
    /// E7
    AnswersLate,
    /// E9
    ExtendsByCommand,
    /// E9
    TakesCommandsWithoutLease,
    /// E9: for 0.7 s only.
    TakesCommandsALittleLonger,
    /// E10
    WrongDigest,
    /// E10
    DigestAfterChange,
    /// E10: takes a claim in full for known when it was sent.
    AnnouncesOnSending,
    /// E10
    IgnoresClaimWanted,
    /// E10: takes an answer with claim_wanted for a lease.
    RenewsByClaimWanted,
    /// E10
    OmitsAShard,
    /// E11
    NeverFences,
    /// E11: one lease and a half too late.
    FencesLate,
    /// E12
    RegistersAfterSuperseded,
    /// E12
    RenewsAfterSuperseded,
    /// E12
    SaysNoFarewell,
    /// E13
    KeepsIncarnation,
    /// E13
    KeepsShards,
    /// E13: stops while it registers.
    RegistersWhileStopping,
    /// E13: until its own lease is over.
    IgnoresUnknown,
    /// E13
    ForgetsCluster,
    /// E14
    KeepsIncarnationElsewhere,
    /// E14
    KeepsShardsElsewhere,
    /// E14: goes on where an answer names another cluster.
    FollowsForeignAnswers,
    /// E14: until its own lease is over.
    IgnoresForeignAnswers,
    /// E14: until its own lease is over.
    IgnoresWrongCluster,
    /// E15
    IgnoresHigherEpochs,
    /// E15
    TakesLowerEpochs,
    /// E16
    DeregistersAtOnce,
    /// E16
    StopsBeforeTold,
    /// E16
    NeverDeregisters,
    /// E17
    NoHealth,
    /// E17
    NotServing,
    /// E17: knows only the name of its service.
    KnowsNoUnnamedService,
    /// E18
    TakesOldAnswers,
    /// E18
    TakesOldAssignments,
    /// E19
    ReportsNonsense,

    /// Ends in the middle of a command of another cluster.
    Dies,
    /// Absurd: endpoints, marks, claims and answers that break the rules of the messages themselves.
    BadEndpoint,
    HighestMark,
    HugeClaims,
    ClaimsNoSuchShard,
    ClaimsHighestEpoch,
    AnswersNoSuchShard,
}
