/* preempt.pml: decode worker D preempts; full blocks go to storage S with a bounded wait; they come back or are recomputed.
 *
 * NS sequences, each one full block of two pieces, pool of NB blocks (NB < NS).  S copies piece by piece, checks the block's
 * generation, then commits (data, then index).  S may be killed before any step (CRS times): what was committed survives,
 * what was in flight does not; not moving is being stopped.  Put, ack and get can be repeated and late; the bounded wait may
 * end at any moment.  On restore S writes into D's block, so that D must fence it like any remote writer.
 * APART: a sequence whose restore is given up goes on at once; the block stays with the restore until the fence, and until then it does
 * not ask S again.  Without it the sequence itself waits for the fence.
 * D dying for good is an interleaving in which it does not move: its memory stays mapped.
 * MUT=n = a seeded bug (README.md).  Memory order is taken as sequentially consistent. */
#ifndef NS
#define NS 2
#endif
#ifndef NB
#define NB 1
#endif
#ifndef CRS
#define CRS 1
#endif
#ifndef TURNS                   /* preemptions in one run */
#define TURNS 2
#endif
#ifndef CXL                     /* sequences that the client may cancel while they come back */
#define CXL 1
#endif
#ifndef MUT
#define MUT 0
#endif
/* sequence */
#define Q_WAIT 0                /* has no block: comes back from storage or by recompute */
#define Q_RUN 1
#define Q_PUT 2                 /* preempted, block still held, write-out under way */
#define Q_GET 3                 /* block taken, S may write it */
#define Q_FENCE 4               /* restore given up, block in quarantine */
#define Q_FILL 5                /* recompute */
#define Q_DONE 6
byte qs[NS+1], qb[NS+1], qg[NS+1];        /* state, block, generation under which put or get was asked */
byte own[NB], gen[NB], cont[NB*2], fillp[NS+1];
byte turns, cxl, sep;   
/* messages: the latest put and get of each sequence, kept deliverable; acks by generation */
byte putb[NS+1], putg[NS+1], getb[NS+1], getg[NS+1];     /* generation 0 = none */
bit  fence[NS+1], fenced[NS+1], gotit[NS+1], miss[NS+1];
bit  z[NS+1];                              /* APART: block zb is kept by a restore that was given up; zs: the epoch of S that was asked */
byte zb[NS+1], zs[NS+1];
byte acked[NS+1];
/* storage */
byte sw, sb, sg, sp, sbuf[2], gw, gb, gg, gp, sneed;
byte sc[(NS+1)*2];
bit  si[NS+1];

#define OWN2(s) (cont[qb[s]*2]==s && cont[qb[s]*2+1]==s)
inline take(s, b) { own[b]=s; qb[s]=b;
#if MUT!=4 && MUT!=9
    gen[b]++;                             /* every reuse is a new generation, also one after an acknowledgement */
#endif
    skip }
inline drop(s) { own[qb[s]]=0; qb[s]=0 }

proctype decode(byte s) {
  byte b;
end: do
  /* come back */
  :: atomic { qs[s]==Q_WAIT -> 
        if :: own[0]==0 -> b=0
#if NB>1
           :: own[1]==0 -> b=1
#endif
        fi;
        take(s, b);
        if :: !z[s] -> qs[s]=Q_GET; getb[s]=b; getg[s]=gen[b]; gotit[s]=0; miss[s]=0; fence[s]=0; fenced[s]=0; qg[s]=sep
           :: qs[s]=Q_FILL; fillp[s]=0
        fi; b=0 }
  :: atomic { qs[s]==Q_FILL && fillp[s]<2 -> cont[qb[s]*2+fillp[s]]=s; fillp[s]++ }
  :: atomic { qs[s]==Q_FILL && fillp[s]==2 -> fillp[s]=0; qs[s]=Q_RUN;
#if MUT==9
        gen[qb[s]]++;                                         /* seeded: the new generation comes after the new contents */
#endif
        skip }
  :: atomic { qs[s]==Q_GET && gotit[s] -> getg[s]=0; gotit[s]=0; assert(OWN2(s)); qs[s]=Q_RUN }
  /* a miss, or storage restarted (end of file): no more writes, recompute in place */
  :: atomic { qs[s]==Q_GET && !gotit[s] && (miss[s] || qg[s]!=sep) -> getg[s]=0; miss[s]=0; qs[s]=Q_FILL; fillp[s]=0 }
  /* the wait for the restore ends, or the client cancels */
  :: atomic { qs[s]==Q_GET && !gotit[s] && cxl<CXL -> cxl++; getg[s]=0;
#if MUT==5
        drop(s); qs[s]=Q_WAIT }                  /* seeded: a timer frees the write target */
#elif defined(APART)
        fence[s]=1; fenced[s]=0; z[s]=1; zb[s]=qb[s]; zs[s]=qg[s]; qb[s]=0; qs[s]=Q_WAIT }
  :: atomic { z[s] && (fenced[s] || zs[s]!=sep) -> fence[s]=0; fenced[s]=0; gotit[s]=0; miss[s]=0; z[s]=0; own[zb[s]]=0; zb[s]=0; zs[s]=0 }
#else
        fence[s]=1; fenced[s]=0; qs[s]=Q_FENCE }
#endif
  :: atomic { qs[s]==Q_FENCE && (fenced[s] || qg[s]!=sep) -> fence[s]=0; fenced[s]=0; gotit[s]=0; miss[s]=0; drop(s); qs[s]=Q_WAIT }
  /* decode, then end or be preempted */
  :: atomic { qs[s]==Q_RUN -> assert(OWN2(s)); drop(s); qs[s]=Q_DONE }
  :: atomic { qs[s]==Q_RUN && turns<TURNS -> turns++; assert(OWN2(s)); qs[s]=Q_PUT; putb[s]=qb[s]; putg[s]=gen[qb[s]]; qg[s]=gen[qb[s]] }
#if MUT==6
  :: atomic { qs[s]==Q_PUT && acked[s]!=0 -> drop(s); qs[s]=Q_WAIT }            /* seeded: an old ack counts */
#else
  :: atomic { qs[s]==Q_PUT && acked[s]==qg[s] -> drop(s); qs[s]=Q_WAIT }
#endif
  :: atomic { qs[s]==Q_PUT && acked[s]!=qg[s] ->              /* bounded wait over: void by generation (take) */
        drop(s); qs[s]=Q_WAIT }
  od
}

inline s_clear() { sw=0; sb=0; sg=0; sp=0; sbuf[0]=0; sbuf[1]=0 }
inline g_clear() { gw=0; gb=0; gg=0; gp=0 }
proctype storage(byte s) {
end: do
  /* put */
  :: atomic { sw==0 && putg[s]!=0 && acked[s]!=putg[s] && gen[putb[s]]==putg[s] -> sw=s; sb=putb[s]; sg=putg[s]; sp=0 }
  :: atomic { sw==s && sp<2 -> sbuf[sp]=cont[sb*2+sp]; sp++ }
#if MUT==1
  :: atomic { sw==s && sp==2 -> sp=3 }                        /* seeded: no check after the copy */
#elif MUT==2
  :: atomic { sw==s && sp==2 -> sp=3 }
#else
  :: atomic { sw==s && sp==2 && gen[sb]==sg -> sp=3 }
  :: atomic { sw==s && sp==2 && gen[sb]!=sg -> s_clear() }
#endif
#if MUT==7
  :: atomic { sw==s && sp==3 -> si[s]=1; sp=4 }               /* seeded: index before data */
  :: atomic { sw==s && sp==4 -> sc[s*2]=sbuf[0]; sp=5 }
  :: atomic { sw==s && sp==5 -> sc[s*2+1]=sbuf[1]; acked[s]=sg; s_clear() }
#else
  :: atomic { sw==s && sp==3 -> if :: !si[s] -> sc[s*2]=sbuf[0] :: else fi; sp=4 }
  :: atomic { sw==s && sp==4 -> if :: !si[s] -> sc[s*2+1]=sbuf[1] :: else fi; sp=5 }
  :: atomic { sw==s && sp==5 -> si[s]=1; sp=6;
        assert(sc[s*2]==s && sc[s*2+1]==s) }                  /* a hash names only contents that were copied completely before reuse */
  :: atomic { sw==s && sp==6 -> acked[s]=sg; s_clear() }
#endif
  /* get: S is a remote writer of D's block */
  :: atomic { gw==0 && getg[s]!=0 && !gotit[s] && !miss[s] && !fence[s] && qg[s]==sep ->
        if :: si[s] -> gw=s; gb=getb[s]; gg=getg[s]; gp=0 :: else -> miss[s]=1 fi }
  :: atomic { gw==s && gp<2 -> assert(own[gb]==s && (qs[s]==Q_GET || qs[s]==Q_FENCE || (z[s] && zb[s]==gb)));        /* I3 */
        cont[gb*2+gp]=sc[s*2+gp]; gp++ }
  :: atomic { gw==s && gp==2 -> if :: qs[s]==Q_GET && getg[s]==gg -> gotit[s]=1 :: else fi; g_clear() }
#if MUT==8
  :: atomic { fence[s] && !fenced[s] -> fenced[s]=1 }         /* seeded: acknowledged with a write in flight */
#else
  :: atomic { fence[s] && !fenced[s] && gw!=s -> fenced[s]=1 }
#endif
  od
}

proctype env() {
end: do
#if CRS
  :: atomic { sep<CRS -> sep++; s_clear(); g_clear();
        if :: acked[1]=0; acked[2]=0; acked[NS]=0 :: skip fi }
#endif
#ifdef EVICT
  :: atomic { si[1] && gw!=1 && sw!=1 -> si[1]=0; sc[2]=0; sc[3]=0 }
#endif
  :: false
  od
}
proctype monitor() {
  byte i;
  timeout -> atomic {
    for (i : 1 .. NS) { assert(qs[i]==Q_DONE) };
    for (i : 0 .. NB-1) { assert(own[i]==0) }
  }
}
init { byte i; atomic { for (i : 0 .. NB-1) { gen[i]=1 }; for (i : 1 .. NS) { run decode(i); run storage(i) }; run env(); run monitor(); i=0 } }
